"""MovieLens ratings as published: `UserID::MovieID::Rating::Timestamp`, one a line."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge

from mpifed.data.archives import located, opened
from mpifed.data.base import Dataset, Shards
from mpifed.data.delivery import agreed
from mpifed.data.kmeans import Solver
from mpifed.data.partitioned import PIECE, InFileOrder, Pool, describe, load_pooled
from mpifed.data.partitions import ContiguousRule, partition, partition_points
from mpifed.data.sources.libsvm import Fraction
from mpifed.errors import InputError
from mpifed.io.memory import check_memory
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream

HIGHEST = 5.0
# The largest number of a user or a movie: float64, as which they are read, holds them exactly.
LARGEST = 10**15 - 1

FORM = "UserID::MovieID::Rating::Timestamp"

_WHOLE, _REAL = rb"[1-9][0-9]{0,14}", rb"[0-9]{1,20}(?:\.[0-9]{0,20})?"
_LINE = rb"::".join([_WHOLE, _WHOLE, _REAL, _REAL])
# Matches the beginning of a line that does not have the form.
WRONG_LINE = re.compile(rb"^(?!" + _LINE + rb"\r?$|\Z)", re.MULTILINE)


@dataclass(frozen=True)
class Table:
    """The ratings in a file."""

    path: Path
    users: np.ndarray
    movies: np.ndarray
    stars: np.ndarray


class Ratings(Dataset):
    """MovieLens `ratings.dat`: users and the stars they gave, unlabelled rows of a matrix.

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
    kmeans_solver : {'own', 'package'}
        Solver of the partition ``kmeans``: mpifed's own, or the package k-means-constrained.
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
        contiguous_rule: ContiguousRule = "floor",
        kmeans_solver: Solver = "own",
        test_fraction: Fraction = 0.0,
        seed: Annotated[int, Ge(0)] | None = None,
    ) -> None:
        self.seed: int = run_seed if seed is None else seed
        self._communicator = communicator
        self._matrix: np.ndarray | None = None

        def read() -> list[np.ndarray]:
            table = parse(located(path, "movielens", raw))
            if choose == "most_rated":
                kept = most_rated(table, users, movies)
            else:
                kept = at_random(table, users, movies, stream(self.seed, "ratings/choice"))
            self._matrix = matrix(table, *kept)
            options = {
                "contiguous_rule": contiguous_rule,
                "kmeans_solver": kmeans_solver,
                "min_samples": 1,
            }
            return _deal(self._matrix, partition, n_clients, self.seed, options)

        indices = agreed(communicator, read)
        self._pool = Pool(
            "ratings", np.empty((users, 0)), 0, (movies,), "float64", task="unlabelled"
        )
        self._dealt = InFileOrder(indices, self.seed, test_fraction)
        self.description = describe(self._pool, self._dealt)

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective."""
        return load_pooled(
            self._pool, self._dealt, self._pieces, client_ids, dtype, self._communicator
        )

    def _pieces(self) -> Iterator[np.ndarray]:
        assert self._matrix is not None
        for start in range(0, len(self._matrix), PIECE):
            yield self._matrix[start : start + PIECE]


def _deal(
    rows: np.ndarray, name: str, n_clients: int, seed: int, options: Mapping[str, object]
) -> list[np.ndarray]:
    rng = stream(seed, "partition")
    if name == "kmeans":
        return partition_points(rows, n_clients, rng, options)
    return partition(name, np.zeros(len(rows), np.int64), n_clients, rng, options)


def parse(path: Path) -> Table:
    """Return all ratings in ``path``."""
    # The text, a copy of it with other separators, and four numbers for each of its lines.
    with opened(path, held=4) as file:
        text = file.read()
    if not text:
        raise InputError(f"data.path is '{path}', which holds no rating of the form {FORM}")
    wrong = WRONG_LINE.search(text)
    formed = text if wrong is None else text[: wrong.start()]
    numbers = np.array([])
    if formed:
        numbers = np.fromstring(formed.replace(b"::", b" "), np.float64, sep=" ")
    users, movies, stars, _ = numbers.reshape(-1, 4).T
    right = (stars > 0) & (stars <= HIGHEST)
    if wrong is not None or not right.all():
        raise _refusal(path, text, len(right) if right.all() else int(right.argmin()))
    table = Table(path, users.astype(np.int64), movies.astype(np.int64), stars)
    _check_once(table)
    return table


def _refusal(path: Path, text: bytes, line: int) -> InputError:
    """Return the error for a line, counted from 0."""
    shown = text.split(b"\n", line + 1)[line].rstrip(b"\r")[:60].decode("utf-8", "replace")
    return InputError(
        f"data.path is '{path}', whose line {line + 1} is '{shown}', not {FORM} with numbers from "
        f"1 to {LARGEST} and at most {HIGHEST:g} stars"
    )


def _check_once(table: Table) -> None:
    order = np.lexsort((table.movies, table.users))
    users, movies = table.users[order], table.movies[order]
    twice = np.flatnonzero((users[1:] == users[:-1]) & (movies[1:] == movies[:-1]))
    if len(twice):
        raise InputError(
            f"data.path is '{table.path}', where user {users[twice[0]]} rates movie "
            f"{movies[twice[0]]} twice"
        )


def most_rated(table: Table, n_users: int, n_movies: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the users and movies that ``Ratings`` keeps by their number of ratings."""
    movies = _top(table.movies, n_movies, "movies", table.path)
    among = table.users[np.isin(table.movies, movies)]
    return _top(among, n_users, "users", table.path), movies


def at_random(
    table: Table, n_users: int, n_movies: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Return the users and movies that ``Ratings`` draws."""
    rated = np.unique(table.movies)
    _check_enough(len(rated), n_movies, "movies", table.path)
    movies = np.sort(rng.choice(rated, n_movies, replace=False))
    rating = np.unique(table.users[np.isin(table.movies, movies)])
    _check_enough(len(rating), n_users, "users", table.path)
    return np.sort(rng.choice(rating, n_users, replace=False)), movies


def matrix(table: Table, users: np.ndarray, movies: np.ndarray) -> np.ndarray:
    """Return the stars of ``users`` for ``movies``, both ascending: float64 (users, movies)."""
    check_memory(
        8.0 * len(users) * len(movies),
        f"data.users is {len(users)}, which with {len(movies)} movies",
    )
    kept = np.isin(table.users, users) & np.isin(table.movies, movies)
    found = np.zeros((len(users), len(movies)))
    rows = np.searchsorted(users, table.users[kept])
    found[rows, np.searchsorted(movies, table.movies[kept])] = table.stars[kept]
    return found


def _top(numbers: np.ndarray, count: int, what: str, path: Path) -> np.ndarray:
    """The ``count`` most frequent of ``numbers``, ascending; ties by the smaller number."""
    found, times = np.unique(numbers, return_counts=True)
    _check_enough(len(found), count, what, path)
    return np.sort(found[np.argsort(-times, kind="stable")[:count]])


def _check_enough(found: int, wanted: int, what: str, path: Path) -> None:
    if found < wanted:
        raise InputError(
            f"data.{what} is {wanted}, but '{path}' has ratings of only {found} {what} to choose "
            "from"
        )
