"""What a data set is to the rest of mpifed: a description for every rank, shards for each owner.

A data set is made in two steps. Its constructor, which every rank calls, learns the *description*,
the same on every rank and small: how many clients, how many samples each, the shape of an input.
Then each rank loads the shards of the clients it hosts, and of no others.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch

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


@dataclass(frozen=True)
class Shards:
    """The shards of the clients ``client_ids`` (int64, ascending)."""

    client_ids: np.ndarray
    train: Split
    val: Split
    test: Split
    fresh: Callable[[np.ndarray, int, int], Split] | None = None
    """Draws new samples, (client_ids, round, count) to a split, where the source can."""


class Dataset(Protocol):
    """A source of shards; see the module's docstring.

    Two attributes are for ``python -m mpifed.data`` and may be absent: ``seed``, the one that was
    used, and ``divisor``, above 1 where ``load(..., torch.uint8)`` gives whole numbers that are to
    be divided by it.
    """

    description: Description

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """The shards of ``client_ids``, in that order. Collective: every rank calls it once."""
