"""Data sets: a description that every rank has, and shards that only their owners load.

A data set is made in two steps. Every rank calls the constructor, which finds the *description*.
It is small and the same on every rank: the number of clients, the samples of each, the shape of an
input. Each rank then loads the shards of the clients that it hosts, and no others.
"""

from __future__ import annotations

import math
import mmap
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from mpifed.data.preprocessing import Preprocessing
from mpifed.errors import InputError, RunError, StopRequested
from mpifed.mpi.communicator import Communicator
from mpifed.watchdog import heartbeat

T = TypeVar("T")

# Bytes of arrays whose memory malloc keeps for others, which seldom fit where these were.
KEPT = 1 << 20, 1 << 25

Task = Literal["classification", "sequence", "multi_label", "regression", "unlabelled"]

SplitName = Literal["train", "val", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "val", "test")

# Types beside bytes in which tokens are stored.
TOKEN_TYPES = ("uint16", "uint32")


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
    class_names, client_names : tuple of str
        Names of the labels and of the clients, in their order, where the source has them; else
        empty. Labels of a text are characters.
    label_counts : ndarray or None
        How often each label occurs among the training targets of all clients, int64 (n_classes,),
        before ``evaluation.validation_fraction`` holds any out. None where the source does not
        count them.
    preprocessing : Preprocessing or None
        What makes inputs of new samples; inputs are samples as they are without it. None where an
        earlier version did not record it.

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
    class_names: tuple[str, ...] = ()
    label_counts: np.ndarray | None = None
    client_names: tuple[str, ...] = ()
    preprocessing: Preprocessing | None = Preprocessing()

    @property
    def n_clients(self) -> int:
        """Number of clients."""
        return len(self.n_train)

    @property
    def n_tokens(self) -> int | None:
        """What tokens of texts are below, of which 0 is padding; None where inputs are others."""
        return None if self.preprocessing is None else self.preprocessing.n_tokens

    @property
    def n_samples(self) -> np.ndarray:
        """Samples of each client in all splits, int64 (n_clients,)."""
        return self.n_train + self.n_val + self.n_test

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


@dataclass(frozen=True)
class ProblemDescription(Description):
    """A description with what a source knows beyond its samples, such as a transport benchmark."""

    problem: Any = None


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

    @cached_property
    def counts(self) -> np.ndarray:
        """Samples of each client, int64 (clients,)."""
        return np.diff(self.offsets)

    @cached_property
    def client_of(self) -> torch.Tensor:
        """The position of the client of each sample, int64 (samples,), where ``x`` is."""
        positions = np.repeat(np.arange(len(self.counts)), self.counts)
        return torch.from_numpy(positions).to(self.x.device)

    def rows_of(self, client: int) -> slice:
        """Return where the samples of the client at position ``client`` are."""
        return slice(int(self.offsets[client]), int(self.offsets[client + 1]))

    def of_clients(self, positions: slice) -> Split:
        """Return the samples of the clients at consecutive positions, which are views."""
        offsets = self.offsets[positions.start : positions.stop + 1]
        part = slice(int(offsets[0]), int(offsets[-1]))
        return Split(self.x[part], self.y[part], offsets - offsets[0])

    def of_client(self, client: int) -> Split:
        """Return the samples of the client at position ``client`` alone, which are views."""
        return self.of_clients(slice(client, client + 1))


# Inputs (samples, *input_shape), and targets as they are named; None for unlabelled data.
NewSamples = tuple[np.ndarray, np.ndarray | None]

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

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.train.x.shape[1:])

    @property
    def train_offsets(self) -> np.ndarray:
        """Those of ``train``, int64 (clients + 1,)."""
        return self.train.offsets

    def train_in_parts(
        self, rows: np.ndarray, firsts: np.ndarray
    ) -> Iterator[tuple[int, Split, np.ndarray]]:
        """Yield the training samples of some clients, here all at once.

        Parameters
        ----------
        rows : ndarray of int64
            Positions of the clients, in the order in which they are asked for.
        firsts : ndarray of int64
            Where among ``rows`` a part may begin, ascending, from 0.

        Yields
        ------
        (int, Split, ndarray)
            Where among ``rows`` the part ends; a split that has its clients; and the first sample
            there of each of them, int64.
        """
        yield len(rows), self.train, self.train.offsets[:-1][rows]


class Dataset(ABC):
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
    tokens_in : {'uint16', 'uint32'}, optional
        The type that ``load`` gives without loss where samples are tokens of more than 256 kinds.
    remarks : sequence of str
        Lines for the log, the same on every rank: what was guessed from the samples, and how it is
        named instead.
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
    tokens_in: str | None = None
    remarks: Sequence[str] = ()
    fresh: Fresh | None = None
    make_split: MakeSplit | None = None

    @classmethod
    def count_clients(cls, options: Mapping[str, Any], run_seed: int) -> int:
        """Return how many clients the data have, for ``clients=data``."""
        raise InputError(f"clients is 'data', but {cls.__name__} has as many as clients=N says")

    def hold_out_published(self) -> Dataset | None:
        """Take from the clients the samples that were published for testing, and return them.

        Collective. None, and nothing is taken, where the source has none, or where they are the
        clients' own.
        """
        return None

    def new_samples(self, samples: Any, label: str | None = None) -> NewSamples:
        """Return new samples as inputs, and their targets as they are.

        Parameters
        ----------
        samples : Path or pandas.DataFrame
            A file or directory in the form of the source, or a table. Columns of clients and of
            marks are ignored. ``InputError`` where the source reads none.
        label : str, optional
            Name of the column of targets in a table. None is that of the source.
        """
        raise InputError(
            "it is no federated HDF5 file (.h5, .hdf5), as mpifed data writes it, and samples of "
            f"'{self.description.source}' are in no files of your own; allowed for most data: "
            "holdout, and in Python a pair of arrays (x, y)"
        )

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


class GeneratedDataset(Dataset):
    """Samples made client by client, on any rank and in any order."""

    def _make(self, client: int, split: str, n: int) -> tuple[np.ndarray, np.ndarray]:
        """Return x (n, *input_shape) and y (n, *target_shape) of a client's split.

        A subclass writes this, or ``_fill`` where many clients are drawn together.
        """
        raise NotImplementedError

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``."""
        splits = [empty_split(self.description, name, client_ids, dtype) for name in SPLITS]
        for name, split in zip(SPLITS, splits, strict=True):
            self._fill(client_ids, name, split)
        train, val, test = splits
        return Shards(client_ids, train, val, test)

    def make_split(self, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        """Return one split of ``client_ids``; see ``Dataset``."""
        split = empty_split(self.description, name, client_ids, dtype)
        self._fill(client_ids, name, split)
        return split

    def _fill(self, client_ids: np.ndarray, name: SplitName, split: Split) -> None:
        """Write the samples of a split."""
        for position, client in enumerate(client_ids.tolist()):
            heartbeat.step()
            samples = split.of_client(position)
            if not len(samples.x):
                continue
            arrays = self._make(client, name, len(samples.x))
            for what, values, drawn in zip("xy", (samples.x, samples.y), arrays, strict=True):
                if np.shape(drawn) != values.shape:  # which copy_ would broadcast
                    raise InputError(
                        f"data set '{type(self).__name__}': {what} of the split {name} of client "
                        f"{client} has shape {np.shape(drawn)}; its description asks for "
                        f"{tuple(values.shape)}"
                    )
                values.copy_(torch.from_numpy(drawn))
                if values.is_floating_point() and not np.isfinite(values.numpy()).all():
                    raise InputError(
                        f"the data set {self.description.source} with such options has a value "
                        f"that is not finite in {values.dtype} among the samples of client {client}"
                    )


def alike(
    source: str,
    input_shape: tuple[int, ...],
    n_classes: int,
    n_clients: int,
    counts: tuple[int, int, int],
    task: Task,
) -> Description:
    """Return the description of clients that all have the same number of samples."""
    n_train, n_val, n_test = (same_for_all(count, n_clients) for count in counts)
    return Description(source, input_shape, n_classes, n_train, n_val, n_test, task)


def parts_up_to(most: float, sizes: np.ndarray) -> Iterator[slice]:
    """Yield consecutive parts of ``sizes`` whose sum is at most ``most``, or that are one alone."""
    ends, start = np.cumsum(sizes), 0
    while start < len(sizes):
        before = ends[start - 1] if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + most, side="right")))
        yield slice(start, stop)
        start = stop


def empty_split(
    description: Description, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype
) -> Split:
    """Return a split of ``client_ids`` whose samples are still to be written."""
    counts = getattr(description, f"n_{name}")[client_ids]
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    x = allocated((int(offsets[-1]), *description.input_shape), dtype)
    y = allocated((int(offsets[-1]), *description.target_shape), description.target_type(dtype))
    return Split(x, y, offsets)


def check_texts(texts: Iterable[str], what: str) -> None:
    """Refuse names with half of a surrogate pair, which no file of results can hold."""
    for text in texts:
        if not text.isprintable() and any("\ud800" <= each <= "\udfff" for each in text):
            raise InputError(f"{what} is {text[:60]!a}, which is no text in UTF-8")


def bad_row(x: torch.Tensor, y: torch.Tensor, description: Description) -> tuple[int, str] | None:
    """Return the first row that cannot be used, and why; None where there is none."""
    if description.task in ("classification", "sequence"):
        wrong = (y < 0) | (y >= description.n_classes)
        if wrong.any():
            row, label = int(wrong.nonzero()[0][0]), int(y[wrong][0])
            return row, f"the label {label}, which is not among 0 .. {description.n_classes - 1},"
    elif description.task == "multi_label" and (wrong := (y != 0) & (y != 1)).any():
        return int(wrong.any(dim=1).nonzero()[0]), "a tag that is neither 0 nor 1"
    for values, what in ((x, "a value"), (y, "a target")):
        if not values.is_floating_point():
            continue
        # numpy does this twenty times as fast as torch 2.13.
        finite = np.isfinite(values.numpy())
        if not finite.all():
            row = int(finite.reshape(len(x), -1).all(axis=1).argmin())
            return row, f"{what} that is not finite"
    return None


def check_tokens(shards: Shards, n_tokens: int, origin: str) -> None:
    """Refuse inputs that are no whole numbers below ``n_tokens``; ``origin`` names the data."""
    for name in SPLITS:
        split: Split = getattr(shards, name)
        for row, client in enumerate(shards.client_ids.tolist()):
            x = split.x[split.rows_of(row)]
            wrong = (x < 0) | (x >= n_tokens) | (x != x.trunc())
            if wrong.any():
                raise InputError(
                    f"{origin}, where /{name} of client {client} has the token "
                    f"{x[wrong][0].item():g}, but the model takes whole numbers from 0 to "
                    f"{n_tokens - 1}; model.vocabulary may be larger"
                )


def allocated(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return an unset tensor on huge pages, which are faster to fill, in memory that returns to the
    system with it.
    """
    kind = np.dtype(str(dtype).removeprefix("torch."))
    size = math.prod(shape) * kind.itemsize
    if not KEPT[0] <= size < KEPT[1] or not hasattr(mmap, "MADV_HUGEPAGE"):
        return torch.from_numpy(np.empty(shape, kind))
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.madvise(mmap.MADV_HUGEPAGE)
    return torch.from_numpy(np.frombuffer(pages, kind).reshape(shape))


def agreed(communicator: Communicator, make: Callable[[], T]) -> T:
    """Return on every rank what ``make()`` returns on rank 0. Collective."""
    outcome: tuple[T | None, Exception | None] = (None, None)
    if communicator.rank == 0:
        try:
            outcome = (make(), None)
        except (InputError, RunError, StopRequested) as error:
            outcome = (None, error)
    value, failure = communicator.broadcast_object(outcome)
    if failure is not None:
        raise failure
    return value
