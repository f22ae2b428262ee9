"""Benchmarks of FLIX on LIBSVM's data: a DIANA round, sparse or dense products, and the figures of
Gasanov et al. 2021 that theory predicts.

``scripts/bench [NAME ...]`` runs them; ``MPIFED_DATA`` names the folder whose ``libsvm`` holds the
files. Seconds are CPU seconds of one process with one thread, median of five.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from bench_figures import engine, in_turn, measures_of, report

REPEATS = 5
ALPHAS = (1.0, 0.1, 0.01, 0.001)
GRID = (1, 22, 45, 67, 90, 113)
"""The published code's k for d = 113: 1 and the rounded down fifths of d."""


def diana_round() -> None:
    """A DIANA round on w8a with 50 clients and k = d / 10, over the gradients of all clients.

    In many short turns, and the median of their ratios: neighbours on the machine then slow both.
    """
    import torch

    from mpifed.local.linear_objective import objective_of

    made = engine(
        "flix-diana",
        **{
            "data.path": "w8a",
            "compression.k": 30,
            "algorithm.local_iterations": 3,
            "algorithm.reference": "none",
        },
    )
    method = made.setup.algorithm
    rows = torch.randn(50, method.payload(), dtype=torch.float64)
    ways: dict[str, Callable[[], Any]] = {}
    for name in ("sparse", "dense"):
        sparse = name == "sparse"
        made_so = objective_of(method.model, made.everyone, method.regulariser, sparse=sparse)
        ways[name] = partial(made_so.gradients, rows)
    median = {n: statistics.median(v) for n, v in in_turn(ways, REPEATS, inner=10).items()}
    fastest = min(ways, key=median.__getitem__)
    measured = in_turn({"round": made.advance, fastest: ways[fastest]}, 81, inner=10)
    median |= {n: statistics.median(v) for n, v in measured.items()}
    pairs = zip(measured["round"], measured[fastest], strict=True)
    ratios = [whole / part for whole, part in pairs]
    report(
        "diana_round",
        round(statistics.median(ratios), 3),
        "CPU s of a round over those of the gradients alone",
        milliseconds={name: round(1e3 * value, 3) for name, value in median.items()},
    )


def sparse_products() -> None:
    """Gradients by sparse over those by dense products, for several shares of non-zero inputs."""
    import numpy as np
    import torch

    from mpifed.data.base import Description, Shards, Split
    from mpifed.federation.clients import Clients
    from mpifed.federation.federation import Federation
    from mpifed.local.linear_objective import SPARSE_BELOW, objective_of
    from mpifed.local.objective import Regulariser
    from mpifed.models.linear import linear
    from mpifed.mpi.communicator import Alone

    torch.set_num_threads(1)
    draw, clients, samples, d = np.random.default_rng(0), 50, 200, 200
    counts = np.full(clients, samples)
    offsets = np.arange(clients + 1) * samples
    ratios = {}
    for share in (0.05, 0.1, 0.2, 0.25, 0.3, 0.4):
        x = torch.from_numpy((draw.random((clients * samples, d)) < share).astype(float))
        y = torch.from_numpy(draw.integers(2, size=clients * samples))
        train, none = Split(x, y, offsets), Split(x[:0], y[:0], 0 * offsets)
        ids = np.arange(clients)
        everyone = Clients(
            Federation(Alone(), 0 * ids, ids < 0, counts), Shards(ids, train, none, none), ids
        )
        model = linear(Description("bench", (d,), 2, counts, 0 * counts, 0 * counts), bias=False)
        rows = torch.randn(clients, d, dtype=torch.float64)
        ways = {
            name: objective_of(model, everyone, Regulariser(), sparse=name == "sparse")
            for name in ("sparse", "dense")
        }
        calls = {name: partial(way.gradients, rows) for name, way in ways.items()}
        median = {n: statistics.median(v) for n, v in in_turn(calls, REPEATS, inner=10).items()}
        ratios[share] = round(median["sparse"] / median["dense"], 2)
    report("sparse_products", SPARSE_BELOW, "share of non-zero inputs", sparse_over_dense=ratios)


def gaps(made: Any, rounds: int) -> list[float]:
    """The objective gap after each of ``rounds`` rounds, that of the start first."""
    found = [measures_of(made)["objective_gap"]]
    for _ in range(rounds):
        made.advance()
        found.append(measures_of(made)["objective_gap"])
    return found


def dgd_lines() -> None:
    """Gradient descent on mushrooms, 50 clients, lambda = 0.1: the lines of Figure 2.

    The slope is that of log10 gap per round between gaps of 1e-4 and 1e-10 of the first one.
    """
    import numpy as np

    slopes, intercepts, ends = {}, {}, {}
    for alpha in ALPHAS:
        gap = np.array(gaps(engine("flix-gd", **{"algorithm.flix_alpha": alpha}), 600))
        inside = np.flatnonzero((gap < 1e-4 * gap[0]) & (gap > max(1e-10 * gap[0], 1e-13)))
        slopes[alpha], intercepts[alpha] = np.polyfit(inside, np.log10(gap[inside]), 1)
        ends[alpha] = float(np.min(np.abs(gap)))
    spread = max(slopes.values()) / min(slopes.values()) - 1
    fitted = np.polyfit(np.log10(ALPHAS), [intercepts[a] for a in ALPHAS], 1)[0]
    report(
        "dgd_lines",
        round(abs(spread), 4),
        "relative spread of the slopes over alpha",
        slopes={a: round(float(s), 5) for a, s in slopes.items()},
        power_of_alpha_in_the_intercept=round(float(fitted), 3),
        least_gap=ends,
    )


def diana_rounds() -> None:
    """Rounds of DIANA to a gap of 1e-10 on mushrooms beside those that Theorem 4 predicts."""
    from mpifed.training.evaluation import remarks

    answers = {}
    for k in GRID:
        made = engine("flix-diana", **{"compression.k": k})
        predicted = int(remarks(made.setup, made.state, made.shards)[-1].split()[-2])
        done = 0
        while measures_of(made)["objective_gap"] > 1e-10 and done < predicted:
            for _ in range(5):
                made.advance()
            done += 5
        answers[k] = (done, predicted)
    worst = max(done / predicted for done, predicted in answers.values())
    report("diana_rounds", round(worst, 3), "of the rounds predicted, at most", rounds=answers)


def dcgd_floor() -> None:
    """The mean squared distance at which DCGD stays on mushrooms, over the bound of Theorem 3."""
    import numpy as np
    import torch

    from mpifed.algorithms.flix import theorems
    from mpifed.federation.clients import Draws
    from mpifed.training.evaluation import training_of

    ratios = {}
    for k in GRID[:-1]:
        made = engine("flix-dcgd", **{"compression.k": k})
        method, clients = made.setup.algorithm, training_of(made.setup, made.shards)
        state = made.state.algorithm
        c = method.constants(state, clients, made.setup.exchange)
        rows = state.reference.expand(len(clients), -1)
        noise = method.objective.gradients(state.optima, rows, clients, Draws(0, 0))
        floor = theorems.dcgd_floor(
            c, float(state.step), c.omega * float(noise.square().sum(1).mean())
        )
        contraction = 1 - float(state.step) * c.mu_alpha
        rounds = min(40_000, int(np.ceil(np.log(1e-3) / np.log(contraction))))
        away = []
        for _ in range(rounds):
            made.advance()
            distance = made.state.algorithm.model[0] - state.reference
            away.append(float(torch.sum(distance**2)))
        ratios[k] = round(float(np.mean(away[rounds // 2 :])) / floor, 4)
    report("dcgd_floor", max(ratios.values()), "of the bound, at most", by_k=ratios)


def figure_three() -> None:
    """The sweep of Figure 3: 4 alpha times 6 k, 2000 rounds each, as a user starts it."""
    import resource

    words = [
        f"algorithm.flix_alpha=[{','.join(map(str, ALPHAS))}]",
        f"compression.k=[{','.join(map(str, GRID))}]",
    ]
    with tempfile.TemporaryDirectory(prefix="mpifed-bench-") as folder:
        command = [sys.executable, "-m", "mpifed.sweep", "flix-diana", *words, "--output", folder]
        began = time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report(
        "figure_three",
        round(used.ru_utime + used.ru_stime, 1),
        "CPU s of 24 runs, starting Python included",
        wall=round(time.monotonic() - began, 1),
    )


BENCHMARKS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (diana_round, sparse_products, dgd_lines, diana_rounds, dcgd_floor, figure_three)
}
