"""What a data set is to the rest of mpifed: a description for every rank, shards for each owner.

A data set is made in two steps. Its constructor, which every rank calls, learns the *description*,
the same on every rank and small: how many clients, how many samples each, the shape of an input.
Then each rank loads the shards of the clients it hosts, and of no others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from mpifed.components.base import Component

Task = Literal["classification", "multi_label", "regression", "unlabelled"]


@dataclass(frozen=True)
class Description:
    """What every rank knows about a data set.

    ``n_train``, ``n_val`` and ``n_test`` are int64 of shape (n_clients,). ``n_classes`` counts
    labels (``classification``; 2 means binary: models then have a single output, the logit of
    label 1), tags (``multi_label``) or target columns (``regression``); it is 0 for ``unlabelled``.
    ``problem`` is what a source knows beyond samples, such as a transport benchmark.
    """

    source: str
    input_shape: tuple[int, ...]
    n_classes: int
    n_train: np.ndarray
    n_val: np.ndarray
    n_test: np.ndarray
    task: Task = "classification"
    problem: Any = None

    @property
    def n_clients(self) -> int:
        return len(self.n_train)

    @property
    def n_outputs(self) -> int:
        """Numbers that a model gives for an input: 1 for binary labels, else ``n_classes``."""
        binary = self.task == "classification" and self.n_classes == 2
        return 1 if binary else self.n_classes

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of the target of one sample: () for labels, else (n_classes,)."""
        return () if self.task == "classification" else (self.n_classes,)

    def target_type(self, dtype: torch.dtype) -> torch.dtype:
        """Type of ``Split.y`` beside x of type ``dtype``; float64 where that is no floating one."""
        if self.task == "classification":
            return torch.int64
        return dtype if dtype.is_floating_point else torch.float64


@dataclass(frozen=True)
class Split:
    """One split of some clients' shards, client after client.

    ``x`` has shape (samples, *input_shape) in the run's floating type. ``y`` depends on the task:

    * ``classification``: labels, int64 (samples,);
    * ``multi_label``: 1 where a sample has the tag, else 0; floating (samples, n_classes);
    * ``regression``: floating (samples, n_classes);
    * ``unlabelled``: floating (samples, 0).

    Client i (in the order asked for) owns rows ``offsets[i]`` to ``offsets[i + 1]``; ``offsets`` is
    int64 numpy of shape (clients + 1,).
    """

    x: torch.Tensor
    y: torch.Tensor
    offsets: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """Samples of each client, int64 (clients,)."""
        return np.diff(self.offsets)


Fresh = Callable[[np.ndarray, int, int], Split]


@dataclass(frozen=True)
class Shards:
    """The shards of the clients ``client_ids`` (int64, ascending)."""

    client_ids: np.ndarray
    train: Split
    val: Split
    test: Split
    fresh: Fresh | None = None
    """Draws new samples where the source can; see ``Dataset``."""


class Dataset(Component, kind="data set"):
    """Base class of data sets: a description for every rank, shards for each owner.

    The first three parameters of a subclass are the number of clients, the seed of the run and the
    communicator; its keyword-only parameters are its options.

    Attributes
    ----------
    description : Description
        What every rank knows; set by ``__init__``.
    seed : int or None
        The seed that was used; None stands for that of the run.
    divisor : int
        Above 1 where ``load(..., torch.uint8)`` gives whole numbers to be divided by it.
    fresh : callable or None
        Draws new samples where the source can, (client_ids, round, count) to a split of ``count``
        samples of each client, float64. They follow the client's own law and depend on the seed,
        the round and the client alone: the same call gives the same samples on any rank.
    """

    description: Description
    seed: int | None = None
    divisor: int = 1
    fresh: Fresh | None = None

    @abstractmethod
    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``, in that order. Collective: all ranks call it once.

        Parameters
        ----------
        client_ids : ndarray
            int64, ascending.
        dtype : torch.dtype
            Type of x, and of floating-point targets.
        """
