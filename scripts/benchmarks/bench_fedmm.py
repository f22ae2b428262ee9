"""Benchmarks of FedMM: whole rounds of the engine on the dictionary problem and on ratings.

Each prints one JSON object a line: {"name", "value", "unit", "detail"}. Milliseconds are CPU time
of one process with one thread, median over rounds. ``share_of_statistics`` is what lasso codes and
the products of codes and samples take of it. Ratings are made up (rank 8 plus noise, a fifth
present) and written as MovieLens publishes its own.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_figures import engine, report
from bench_surrogates import ratings

ROUNDS = 200
USERS, MOVIES = 6040, 600


def measured(made: Any, rounds: int) -> tuple[list[float], float]:
    """CPU seconds of each of ``rounds`` rounds, and the share of the clients' statistics."""
    algorithm, inside = made.setup.algorithm, [0.0]
    computed = algorithm.statistics

    def timed(*arguments: Any) -> Any:
        began = time.process_time()
        found = computed(*arguments)
        inside[0] += time.process_time() - began
        return found

    algorithm.statistics = timed
    taken = []
    for _ in range(rounds):
        began = time.process_time()
        made.advance()
        taken.append(time.process_time() - began)
    return taken, inside[0] / sum(taken)


def rounds_of(name: str, rounds: int, experiment: str, **overrides: Any) -> None:
    """Time rounds of ``experiment``, from its beginning."""
    made = engine(experiment, **overrides)
    taken, share = measured(made, rounds)
    report(
        name,
        round(1e3 * statistics.median(taken), 2),
        "CPU ms",
        rounds=rounds,
        fastest_quarter=round(1e3 * float(np.quantile(taken, 0.25)), 2),
        last_twenty=round(1e3 * statistics.median(taken[-20:]), 2),
        share_of_statistics=round(share, 2),
    )


def write_ratings(path: Path) -> None:
    """Write made-up ratings of ``USERS`` and ``MOVIES`` as lines of ``ratings.dat``."""
    stars = ratings(USERS, MOVIES).numpy()
    users, movies = np.nonzero(stars)
    lines = (
        f"{user + 1}::{movie + 1}::{int(stars[user, movie])}::0"
        for user, movie in zip(users.tolist(), movies.tolist(), strict=True)
    )
    path.write_text("\n".join(lines) + "\n")


def ratings_rounds() -> None:
    """Time rounds with 50 atoms, 500 movies and 20 clients of 250 users, 10 of them active."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ratings.dat"
        write_ratings(path)
        overrides = {"data.path": str(path), "data.partition": "iid"}
        rounds_of("fedmm_engine_ratings", 60, "fedmm-ratings", **overrides)


BENCHMARKS: dict[str, Callable[[], None]] = {
    "fedmm_engine": lambda: rounds_of("fedmm_engine", ROUNDS, "fedmm-heterogeneous"),
    "fedmm_engine_theta": lambda: rounds_of(
        "fedmm_engine_theta",
        ROUNDS,
        "fedmm-heterogeneous",
        algorithm={"name": "fedmm_theta", "batch": 50, "control_variate_rate": 0.01},
    ),
    "fedmm_engine_ratings": ratings_rounds,
}
