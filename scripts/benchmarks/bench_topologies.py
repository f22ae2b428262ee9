"""Benchmarks of topologies: fastest mixing weights and a sweep of many graphs.

Each prints one JSON object a line: {"name", "value", "unit", "detail"}. Seconds are CPU seconds of
one process with BLAS on one thread, median of ``detail.repeats``.
"""

from __future__ import annotations

import contextlib
import io
import math
import statistics
import sys
from collections.abc import Callable

from bench_figures import cpu_seconds, report, run
from threadpoolctl import threadpool_limits

import topologies
from topologies.__main__ import main as command

SEED = 1234
SWEEP = (
    "ring",
    "path",
    "torus",
    "complete",
    "star",
    "hypercube",
    "barbell",
    "exponential",
    "random_regular:degree=3",
    "random_regular:degree=4",
    "small_world:neighbours=4,p=0.2",
    "small_world:neighbours=6,p=0.1",
    "erdos_renyi:p=0.1",
    "erdos_renyi:p=0.2",
    "erdos_renyi:p=0.5",
    "erdos_renyi:p=0.8",
    "one_peer_exponential",
    "static_exponential",
    "base_k",
    "equitopo",
)


def fmmc(n: int, p: float, repeats: int) -> None:
    """Time the fastest mixing weights of a random graph to a certified gap of 1e-3."""
    graph = topologies.build_graph("erdos_renyi", n, SEED, p=p)
    results: list[topologies.FmmcResult] = []
    with threadpool_limits(1, user_api="blas"):
        seconds = cpu_seconds(
            lambda: results.append(topologies.fmmc(graph, 1e-3)), repeats, warm=False
        )
    found = results[-1]
    report(
        f"fmmc_{'dense' if p == 0.5 else 'sparse'}_{n}",
        round(statistics.median(seconds), 4),
        "CPU s",
        p=p,
        seed=SEED,
        edges=graph.number_of_edges(),
        slem=found.slem,
        lower_bound=found.lower_bound,
        certified_gap=found.certified_gap,
        iterations=found.iterations,
        repeats=repeats,
        seconds=[round(value, 4) for value in seconds],
    )


def sparse(n: int) -> float:
    """Return the edge probability 2 ln n / n, at which nearly every graph is connected."""
    return 2 * math.log(n) / n


def sweep() -> None:
    """Time ``compare`` on twenty topologies of 64 nodes, each with fastest mixing weights."""

    def compare() -> None:
        with contextlib.redirect_stdout(io.StringIO()):
            command(["compare", *SWEEP, "--n", "64", "--weights", "fmmc", "--seed", str(SEED)])

    with threadpool_limits(1, user_api="blas"):
        seconds = cpu_seconds(compare, 3, warm=False)
    report(
        "compare_20_topologies_64",
        round(statistics.median(seconds), 3),
        "CPU s",
        topologies=SWEEP,
        repeats=3,
        seconds=[round(value, 3) for value in seconds],
    )


BENCHMARKS: dict[str, Callable[[], None]] = {
    "fmmc_dense_20": lambda: fmmc(20, 0.5, 5),
    "fmmc_dense_50": lambda: fmmc(50, 0.5, 5),
    "fmmc_dense_100": lambda: fmmc(100, 0.5, 5),
    "fmmc_dense_300": lambda: fmmc(300, 0.5, 5),
    "fmmc_dense_1000": lambda: fmmc(1000, 0.5, 3),
    "fmmc_sparse_100": lambda: fmmc(100, sparse(100), 5),
    "fmmc_sparse_300": lambda: fmmc(300, sparse(300), 5),
    "fmmc_sparse_1000": lambda: fmmc(1000, sparse(1000), 1),
    "fmmc_sparse_3000": lambda: fmmc(3000, sparse(3000), 1),
    "compare_20_topologies_64": sweep,
}


if __name__ == "__main__":
    sys.exit(run(BENCHMARKS, sys.argv[1:]))
