"""Files in LIBSVM's text format, plain or compressed: a label and `feature:value` pairs a line."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Lt
from scipy.sparse import csr_matrix

from mpifed.dataset import (
    Communicator,
    Pool,
    PooledDataset,
    Source,
    archives,
    partitions,
    stream,
)
from mpifed.errors import InputError

# Rows of a sparse matrix that are made dense at once.
PIECE = 4096

Labels = Literal["two_values", "published_code"]
Partition = Literal["contiguous", "dirichlet", "iid", "pathological", "kmeans"]
Fraction = Annotated[float, Ge(0), Lt(1)]


class LibSvm(PooledDataset):
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
        contiguous_rule: partitions.ContiguousRule = "floor",
        dirichlet_alpha: partitions.Alpha = 0.4,
        classes_per_client: partitions.Classes = 2,
        min_samples: Annotated[int, Ge(1)] = 1,
        test_fraction: Fraction = 0.0,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        options = {
            "contiguous_rule": contiguous_rule,
            "dirichlet_alpha": dirichlet_alpha,
            "classes_per_client": classes_per_client,
            "min_samples": min_samples,
        }

        def read() -> Source:
            file = archives.located(path, "libsvm", raw)
            rows, values = parse(file, features)
            targets = binary_labels(file, values, labels)
            keys = rows.toarray() if partition == "kmeans" else targets
            rng = stream(self.seed, "partition")
            indices = partitions.partition(partition, keys, n_clients, rng, options)
            width = rows.shape[1] + intercept
            pool = Pool(f"libsvm-{archives.bare_name(file)}", targets, 2, (width,), "float64")
            shard_rows = partitions.in_file_order(indices, self.seed, test_fraction)
            return Source(pool, lambda: dense_rows(rows, intercept), shard_rows=shard_rows)

        super().__init__(read, {}, n_clients, run_seed, communicator, seed=seed)


def dense_rows(rows: csr_matrix, intercept: bool) -> Iterator[np.ndarray]:
    """Yield rows of a sparse matrix, float64 (k, features), with or without a one before them."""
    for start in range(0, rows.shape[0], PIECE):
        dense = rows[start : start + PIECE].toarray()
        yield np.column_stack([np.ones(len(dense)), dense]) if intercept else dense


def parse(path: Path, features: int | None = None) -> tuple[csr_matrix, np.ndarray]:
    """Return the samples and the labels in a LIBSVM file."""
    # scikit-learn takes seconds to import, which only the rank that reads has to spend.
    from sklearn.datasets import load_svmlight_file

    with archives.opened(path, held=2) as stream:
        rows, labels = load_svmlight_file(stream, n_features=features, zero_based=False)
        if not (len(labels) and np.isfinite(labels).all() and np.isfinite(rows.data).all()):
            raise ValueError("it holds no sample, or a value that is not finite")
    return rows, labels


def binary_labels(path: Path, labels: np.ndarray, rule: Labels) -> np.ndarray:
    """Return 0 or 1 for each sample, int64 (samples,)."""
    if rule == "published_code":
        return (labels != -1).astype(np.int64)
    distinct = np.unique(labels)
    if len(distinct) != 2:
        raise InputError(
            f"data.path is '{path}', which has {len(distinct)} labels, as {distinct[:5].tolist()}; "
            "data.labels=two_values asks for two"
        )
    return (labels == distinct[1]).astype(np.int64)
