"""Files in LIBSVM's text format, plain or compressed: a label and `feature:value` pairs a line."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Lt
from scipy.sparse import csr_matrix

from mpifed.data.archives import Stream, bare_name, located, opened
from mpifed.data.base import Dataset, Shards
from mpifed.data.delivery import agreed
from mpifed.data.kmeans import Solver
from mpifed.data.partitioned import PIECE, InFileOrder, Pool, describe, load_pooled
from mpifed.data.partitions import Alpha, Classes, ContiguousRule, partition, partition_points
from mpifed.errors import InputError, one_line
from mpifed.io.memory import check_memory
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream

Labels = Literal["two_values", "published_code"]
Partition = Literal["contiguous", "dirichlet", "iid", "pathological", "kmeans"]
Fraction = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True)
class Parsed:
    """What is in a LIBSVM file."""

    path: Path
    rows: csr_matrix
    labels: np.ndarray


class LibSvm(Dataset):
    """A file in LIBSVM's format with two labels: a6a, w8a, mushrooms and their like.

    Parameters
    ----------
    path : str, optional
        The file, plain or with .gz, .xz or .bz2, or the name of one in the directory ``raw``. None
        is the only file there.
    raw : str, optional
        Directory of such files. None is ``$MPIFED_DATA/libsvm``.
    labels : {'two_values', 'published_code'}
        What becomes 1: the larger of the file's two labels, or whatever is not -1, which is the
        published code's rule, with which all mushrooms are alike.
    intercept : bool
        Whether a column of ones comes before the others, as in the published code of Gasanov et al.
        2022. A linear model then needs no bias.
    features : int, optional
        Number of features. None is the largest number of a feature in the file.
    partition : str
        How samples are dealt to the clients: contiguous, iid, dirichlet, pathological, kmeans.
    contiguous_rule : {'floor', 'array_split'}
        Where the partition ``contiguous`` cuts: at floor(i r / n), as the paper does, or as numpy's
        array_split, as the published code does.
    dirichlet_alpha : float
        Concentration of the partition ``dirichlet``: the larger, the more alike clients are.
    classes_per_client : int
        Labels that a client has in the partition ``pathological``.
    kmeans_solver : {'own', 'package'}
        Solver of the partition ``kmeans``: mpifed's own, or the package k-means-constrained.
    min_samples : int
        Fewest samples that a client may get.
    test_fraction : float
        Share of each client's samples that is for testing, drawn by the seed.
    seed : int, optional
        Seed of the data set. None is the run's.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        path: str | None = None,
        raw: str | None = None,
        labels: Labels = "two_values",
        intercept: bool = True,
        features: Annotated[int, Ge(1)] | None = None,
        partition: Partition = "contiguous",
        contiguous_rule: ContiguousRule = "floor",
        dirichlet_alpha: Alpha = 0.4,
        classes_per_client: Classes = 2,
        kmeans_solver: Solver = "own",
        min_samples: Annotated[int, Ge(1)] = 1,
        test_fraction: Fraction = 0.0,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        self._intercept = intercept
        self._communicator = communicator
        self._rows: csr_matrix | None = None
        options = {
            "contiguous_rule": contiguous_rule,
            "dirichlet_alpha": dirichlet_alpha,
            "classes_per_client": classes_per_client,
            "kmeans_solver": kmeans_solver,
            "min_samples": min_samples,
        }

        def read() -> tuple[Pool, list[np.ndarray]]:
            parsed = parse(located(path, "libsvm", raw), features)
            self._rows = parsed.rows
            targets = binary_labels(parsed, labels)
            width = parsed.rows.shape[1] + intercept
            name = f"libsvm-{bare_name(parsed.path)}"
            pool = Pool(name, targets, 2, (width,), "float64")
            return pool, _deal(parsed.rows, targets, partition, n_clients, self.seed, options)

        self._pool, indices = agreed(communicator, read)
        self._dealt = InFileOrder(indices, self.seed, test_fraction)
        self.description = describe(self._pool, self._dealt)

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective."""
        return load_pooled(
            self._pool, self._dealt, self._pieces, client_ids, dtype, self._communicator
        )

    def _pieces(self) -> Iterator[np.ndarray]:
        assert self._rows is not None
        for start in range(0, self._rows.shape[0], PIECE):
            dense = self._rows[start : start + PIECE].toarray()
            if self._intercept:
                dense = np.column_stack([np.ones(len(dense)), dense])
            yield dense


def _deal(
    rows: csr_matrix,
    labels: np.ndarray,
    name: str,
    n_clients: int,
    seed: int,
    options: Mapping[str, object],
) -> list[np.ndarray]:
    rng = stream(seed, "partition")
    if name == "kmeans":
        check_memory(
            8.0 * rows.shape[0] * rows.shape[1],
            f"data.partition kmeans: {rows.shape[0]} "
            f"samples of {rows.shape[1]} features as a dense matrix",
        )
        return partition_points(rows.toarray(), n_clients, rng, options)
    return partition(name, labels, n_clients, rng, options)


def parse(path: Path, features: int | None = None) -> Parsed:
    """Return the samples and labels in the LIBSVM file ``path``."""
    # scikit-learn takes seconds to import, which only the rank that reads has to spend.
    from sklearn.datasets import load_svmlight_file

    with opened(path, held=2) as stream:
        lines = _Lines(stream)
        try:
            # With features counted from 0, the parser leaves their numbers unchanged.
            rows, labels = load_svmlight_file(lines, zero_based=True)
        except InputError:
            raise
        except (ValueError, IndexError, OverflowError, MemoryError) as error:
            raise InputError(
                f"data.path is '{path}', whose line {lines.number} is not in LIBSVM's format "
                f"({one_line(str(error), 120)})"
            ) from error
    if len(labels) == 0:
        raise InputError(f"data.path is '{path}', which holds no sample")
    owner = np.repeat(np.arange(len(labels)), np.diff(rows.indptr))
    finite = np.isfinite(labels)
    finite[owner[~np.isfinite(rows.data)]] = False
    counted = np.ones(len(labels), bool)
    counted[owner[rows.indices < 1]] = False
    checks = {"a feature 0; they count from 1": counted, "a value that is not finite": finite}
    for wrong, right in checks.items():
        if not right.all():
            line = _line_of(path, int(right.argmin()))
            raise InputError(f"data.path is '{path}', whose line {line} has {wrong}")
    largest = max(1, int(rows.indices.max())) if rows.nnz else 1
    width = largest if features is None else features
    if width < largest:
        raise InputError(
            f"data.features is {features}, but '{path}' has a feature {largest}; it must be at "
            f"least {largest}"
        )
    # Column 0 of what was parsed is empty; the shape counts it.
    shifted = csr_matrix((rows.data, rows.indices - 1, rows.indptr), (len(labels), width))
    return Parsed(path, shifted, labels)


class _Lines:
    """The lines of a stream, counted; numbers that only Python reads as such are refused."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self.number = 0

    def __iter__(self) -> Iterator[bytes]:
        for line in self._stream:
            self.number += 1
            if b"_" in line.split(b"#")[0]:
                raise ValueError("a number has an underscore")
            yield line

    def read(self, size: int = -1) -> bytes:
        # The parser takes a file for one by this method.
        return self._stream.read(size)


def _line_of(path: Path, sample: int) -> int:
    """Return the line of a sample, counted from 1; lines without words are no samples."""
    with opened(path) as stream:
        numbers = (n for n, line in enumerate(stream, 1) if line.split(b"#")[0].split())
        return next(itertools.islice(numbers, sample, None))


def binary_labels(parsed: Parsed, rule: Labels) -> np.ndarray:
    """Return 0 or 1 for each sample, int64 (samples,)."""
    if rule == "published_code":
        return (parsed.labels != -1).astype(np.int64)
    found = np.unique(parsed.labels)
    if len(found) != 2:
        shown = ", ".join(f"{value:g}" for value in found[:5])
        raise InputError(
            f"data.path is '{parsed.path}', which has {len(found)} labels "
            f"({shown}{', ...' if len(found) > 5 else ''}); data.labels=two_values asks for two"
        )
    return (parsed.labels == found[1]).astype(np.int64)
