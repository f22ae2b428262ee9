"""Data sets: a description that every rank has, and shards that only their owners load.

A data set is made in two steps. Every rank calls the constructor, which finds the *description*.
It is small and the same on every rank: the number of clients, the samples of each, the shape of an
input. Each rank then loads the shards of the clients that it hosts, and no others.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch

from mpifed.components.base import Component

Task = Literal["classification", "sequence", "multi_label", "regression", "unlabelled"]


@dataclass(frozen=True)
class Description:
    """What every rank knows about a data set.

    Attributes
    ----------
    source : str
        Name of the data set.
    input_shape : tuple of int
        Shape of the input x of one sample.
    n_classes : int
        Number of labels (``classification``, ``sequence``), tags (``multi_label``) or target
        columns (``regression``); 0 for ``unlabelled``. Two labels of a ``classification`` are
        binary: a model then has a single output, the logit of label 1.
    n_train, n_val, n_test : ndarray
        Samples of each client, int64 (n_clients,).
    task : {'classification', 'sequence', 'multi_label', 'regression', 'unlabelled'}
        What is to be learnt; it sets the shape and the type of targets, see ``Split``.
    problem : object
        What a source knows beyond its samples, such as a transport benchmark; None for most.
    class_names : tuple of str
        Names of the labels, where the source has them; else empty. Those of a text are characters.
    label_counts : ndarray or None
        How often each label occurs among the training targets of all clients, int64 (n_classes,),
        before ``evaluation.validation_fraction`` holds any out. None where the source does not
        count them.

    Examples
    --------
    >>> n = np.array([6, 9])
    >>> about = Description("digits", (8, 8), 10, n_train=n, n_val=n // 3, n_test=n // 3)
    >>> about.n_clients, about.n_outputs, about.target_shape
    (2, 10, ())
    """

    source: str
    input_shape: tuple[int, ...]
    n_classes: int
    n_train: np.ndarray
    n_val: np.ndarray
    n_test: np.ndarray
    task: Task = "classification"
    problem: Any = None
    class_names: tuple[str, ...] = ()
    label_counts: np.ndarray | None = None

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return len(self.n_train)

    @property
    def n_outputs(self) -> int:
        """Numbers that a model gives for an input: 1 for binary labels, else ``n_classes``."""
        binary = self.task == "classification" and self.n_classes == 2
        return 1 if binary else self.n_classes

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Shape of a model's outputs for a sample: (n_outputs,), or (L, n_outputs) of sequences."""
        positions = self.input_shape[:1] if self.task == "sequence" else ()
        return (*positions, self.n_outputs)

    @property
    def target_shape(self) -> tuple[int, ...]:
        """Shape of the target of one sample.

        () for labels, (L,) for sequences of L positions, the first axis of an input, else
        (n_classes,).
        """
        if self.task == "sequence":
            return self.input_shape[:1]
        return () if self.task == "classification" else (self.n_classes,)

    def target_type(self, dtype: torch.dtype) -> torch.dtype:
        """Return the type of ``Split.y`` beside x of type ``dtype``.

        It is int64 for labels, else ``dtype``, or float64 where ``dtype`` is an integer type.
        """
        if self.task in ("classification", "sequence"):
            return torch.int64
        return dtype if dtype.is_floating_point else torch.float64


def same_for_all(count: int, n_clients: int) -> np.ndarray:
    """Return ``count`` for each client, int64 (n_clients,), read-only and without memory.

    Examples
    --------
    >>> same_for_all(5, 3)
    array([5, 5, 5])
    """
    return np.broadcast_to(np.int64(count), n_clients)


@dataclass(frozen=True)
class Split:
    """One split (training, validation or test) of some clients' shards, client after client.

    Attributes
    ----------
    x : Tensor
        Inputs, (samples, *input_shape), in the run's floating-point type.
    y : Tensor
        Targets, whose form depends on the task:

        * ``classification``: labels 0 .. n_classes - 1, int64 (samples,);
        * ``sequence``: a label for each of L positions, int64 (samples, L);
        * ``multi_label``: 1 where a sample has the tag, else 0; floating (samples, n_classes);
        * ``regression``: floating (samples, n_classes);
        * ``unlabelled``: floating (samples, 0).
    offsets : ndarray
        int64 (clients + 1,). Client i, in the order asked for, has the rows ``offsets[i]`` up to
        ``offsets[i + 1]``, the latter excluded.
    """

    x: torch.Tensor
    y: torch.Tensor
    offsets: np.ndarray

    @property
    def counts(self) -> np.ndarray:
        """Samples of each client, int64 (clients,)."""
        return np.diff(self.offsets)

    def rows_of(self, client: int) -> slice:
        """Return where the samples of the client at position ``client`` are."""
        return slice(int(self.offsets[client]), int(self.offsets[client + 1]))

    def of_client(self, client: int) -> Split:
        """Return the samples of the client at position ``client`` alone, which are views."""
        part = self.rows_of(client)
        return Split(self.x[part], self.y[part], np.array([0, part.stop - part.start]))


SplitName = Literal["train", "val", "test"]

Fresh = Callable[[np.ndarray, int, int], Split]
MakeSplit = Callable[[SplitName, np.ndarray, torch.dtype], Split]


@dataclass(frozen=True)
class Shards:
    """The shards of some clients.

    Attributes
    ----------
    client_ids : ndarray
        Numbers of the clients, int64, ascending.
    train, val, test : Split
        Their samples.
    fresh : callable or None
        Draws new samples where the source can; see ``Dataset``.
    """

    client_ids: np.ndarray
    train: Split
    val: Split
    test: Split
    fresh: Fresh | None = None

    @property
    def device(self) -> torch.device:
        """Where the samples are."""
        return self.train.x.device


class Dataset(Component):
    """Base class of data sets: a description for every rank, shards for each owner.

    The first three parameters of a subclass are the number of clients, the seed of the run and the
    communicator. Its keyword-only parameters are its options. Every rank makes it.

    Attributes
    ----------
    description : Description
        What every rank knows; set by ``__init__``.
    seed : int or None
        The seed that was used; None means that of the run.
    divisor : int
        Above 1 where ``load(..., torch.uint8)`` gives whole numbers to be divided by it.
    is_uint8 : bool
        Whether ``load(..., torch.uint8)`` loses nothing, as of pictures and characters.
    fresh : callable or None
        Draws new samples where the source can, (client_ids, round, count) to a split of ``count``
        samples of each client, float64. They follow the client's distribution and depend on the
        seed, the round and the client alone: the same call gives the same samples on any rank.
    make_split : callable or None
        Makes one split of some clients where the source can make them one by one: (name,
        client_ids, dtype) to what ``load`` has of it. It is not collective, and may be called for
        any clients in any order. None where samples can only be loaded all at once.
    """

    description: Description
    seed: int | None = None
    divisor: int = 1
    is_uint8: bool = False
    fresh: Fresh | None = None
    make_split: MakeSplit | None = None

    @abstractmethod
    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective: all ranks call it once.

        Parameters
        ----------
        client_ids : ndarray
            Clients hosted here, int64, ascending; may be empty.
        dtype : torch.dtype
            Type of x, and of floating-point targets.

        Returns
        -------
        Shards
            Splits with the clients in the order of ``client_ids``.
        """

    def remarks(self) -> list[str]:
        """Return lines for the log, the same on every rank; by default none.

        They say what was guessed from the samples and how it is named instead.
        """
        return []
