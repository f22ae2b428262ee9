"""MovieLens ratings as published: `UserID::MovieID::Rating::Timestamp`, one a line."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge

from mpifed.data.sources.libsvm import Fraction
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

HIGHEST = 5.0
# The largest number of a user or a movie: float64, as which they are read, holds them exactly.
LARGEST = 10**15 - 1
FORM = "UserID::MovieID::Rating::Timestamp"


class Ratings(PooledDataset):
    """MovieLens `ratings.dat` (Harper and Konstan 2015): users, and the stars that they gave.

    Rows of a matrix, unlabelled.

    Parameters
    ----------
    path : str
        The file, plain or with .gz, .xz or .bz2, or its name in the directory ``raw``.
    raw : str, optional
        Directory of the file. None is ``$MPIFED_DATA/movielens``.
    users : int
        Users that are kept; 5000 in Dieuleveut et al. 2025, who do not say which.
    movies : int
        Movies that are kept; 500 in Dieuleveut et al. 2025.
    choose : {'most_rated', 'random'}
        Which are kept: the movies with most ratings and then the users with most ratings among
        these, ties by the smaller number; or movies drawn among those rated at all, and users drawn
        among those who rated one of them.
    partition : {'kmeans', 'contiguous', 'iid'}
        How users are dealt to the clients: into clusters of equal size, by their numbers, or at
        random.
    contiguous_rule : {'floor', 'array_split'}
        Where the partition ``contiguous`` cuts: at floor(i r / n), as the paper does, or as numpy's
        array_split, as the published code does.
    test_fraction : float
        Share of each client's users that is for testing, drawn by the seed.
    seed : int, optional
        Seed of the data set. None is the run's.
    """

    def __init__(
        self,
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        path: str = "ratings.dat",
        raw: str | None = None,
        users: Annotated[int, Ge(1)] = 5000,
        movies: Annotated[int, Ge(1)] = 500,
        choose: Literal["most_rated", "random"] = "most_rated",
        partition: Literal["kmeans", "contiguous", "iid"] = "kmeans",
        contiguous_rule: partitions.ContiguousRule = "floor",
        test_fraction: Fraction = 0.0,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        options = {
            "contiguous_rule": contiguous_rule,
            "min_samples": 1,
        }

        def read() -> Source:
            table = parse(archives.located(path, "movielens", raw))
            rng = stream(self.seed, "ratings/choice") if choose == "random" else None
            rows = matrix(table, *selected(table, users, movies, rng))
            rng = stream(self.seed, "partition")
            indices = partitions.partition(partition, rows, n_clients, rng, options)
            unlabelled = np.empty((users, 0))
            pool = Pool("ratings", unlabelled, 0, (movies,), "float64", task="unlabelled")
            shard_rows = partitions.in_file_order(indices, self.seed, test_fraction)
            return Source(pool, lambda: [rows], shard_rows=shard_rows)

        super().__init__(read, {}, n_clients, run_seed, communicator, seed=seed)


@dataclass(frozen=True)
class Table:
    """The ratings in a file."""

    path: Path
    users: np.ndarray
    movies: np.ndarray
    stars: np.ndarray


def parse(path: Path) -> Table:
    """Return all ratings in ``path``."""
    # The text, a copy of it with other separators, and four numbers for each of its lines.
    with archives.opened(path, held=4) as file:
        text = io.BytesIO(file.read().replace(b"::", b"\x1f"))
        numbers = np.loadtxt(text, comments=None, delimiter="\x1f", ndmin=2).reshape(-1, 4)
        users, movies, stars, _ = numbers.T
        is_valid = (numbers == np.floor(numbers)) & (numbers >= 1) & (numbers <= LARGEST)
        wrong = ~(is_valid[:, 0] & is_valid[:, 1] & (stars > 0) & (stars <= HIGHEST))
        if wrong.any() or not len(numbers):
            raise ValueError(
                f"it has {numbers[wrong][:1].tolist()}, not {FORM}; users and movies are numbers "
                f"from 1 to {LARGEST}, stars at most {HIGHEST:g}"
            )
    return Table(path, users.astype(np.int64), movies.astype(np.int64), stars)


def selected(
    table: Table, n_users: int, n_movies: int, rng: np.random.Generator | None
) -> tuple[np.ndarray, np.ndarray]:
    """Return the users and movies that ``Ratings`` keeps: drawn, or those with most ratings."""
    movies = _chosen(table.movies, n_movies, "movies", table.path, rng)
    among = table.users[np.isin(table.movies, movies)]
    return _chosen(among, n_users, "users", table.path, rng), movies


def matrix(table: Table, users: np.ndarray, movies: np.ndarray) -> np.ndarray:
    """Return the stars of ``users`` for ``movies``, both ascending: float64 (users, movies)."""
    is_selected = np.isin(table.users, users) & np.isin(table.movies, movies)
    stars = np.zeros((len(users), len(movies)))
    rows = np.searchsorted(users, table.users[is_selected])
    stars[rows, np.searchsorted(movies, table.movies[is_selected])] = table.stars[is_selected]
    return stars


def _chosen(
    numbers: np.ndarray, count: int, what: str, path: Path, rng: np.random.Generator | None
) -> np.ndarray:
    """``count`` of the ``numbers``, ascending: drawn, or most frequent, ties by the smaller one."""
    distinct, times = np.unique(numbers, return_counts=True)
    if len(distinct) < count:
        raise InputError(
            f"data.{what} is {count}, but '{path}' has ratings of only {len(distinct)}"
        )
    if rng is not None:
        return np.sort(rng.choice(distinct, count, replace=False))
    return np.sort(distinct[np.argsort(-times, kind="stable")[:count]])
