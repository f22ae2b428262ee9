"""Benchmarks of FLIX on LIBSVM's data: a DIANA round, sparse or dense products, and the figures of
Gasanov et al. 2021 that theory foretells.

``scripts/bench [NAME ...]`` runs them; ``MPIFED_DATA`` names the folder whose ``libsvm`` holds the
files. Seconds are CPU seconds of one process with one thread, median of five.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPEATS = 5
ALPHAS = (1.0, 0.1, 0.01, 0.001)
GRID = (1, 22, 45, 67, 90, 113)
"""The published code's k for d = 113: 1 and the rounded down fifths of d."""


def report(name: str, value: float, unit: str, **detail: Any) -> None:
    """Prints one figure as a line of JSON."""
    print(json.dumps({"name": name, "value": value, "unit": unit, "detail": detail}), flush=True)


def engine(experiment: str, **overrides: Any) -> Any:
    """A shipped experiment, prepared for its first round, in this process."""
    import torch

    from mpifed.assembly import make
    from mpifed.communicator import Alone
    from mpifed.config import apply_overrides, read_experiment, resolve
    from mpifed.engine import Clock, Engine

    torch.set_num_threads(1)
    setup = make(resolve(apply_overrides(read_experiment(experiment), overrides)), Alone(), 200)
    made = Engine(setup, setup.load(), Clock())
    made.prepare()
    return made


def in_turn(actions: dict[str, Callable[[], Any]], inner: int) -> dict[str, list[float]]:
    """CPU seconds of one call of each, measured in turn so that all meet the same noise."""
    measured: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()
    for _ in range(REPEATS):
        for name, action in actions.items():
            began = time.process_time()
            for _ in range(inner):
                action()
            measured[name].append((time.process_time() - began) / inner)
    return measured


def diana_round() -> None:
    """A DIANA round on w8a with 50 clients and k = d / 10, over the gradients of all clients."""
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
    ways = {s: objective_of(method.model, made.everyone, method.regulariser, sparse=s) for s in (False, True)}  # fmt: skip
    measured = in_turn(
        {
            "round": made.advance,
            "sparse": lambda: ways[True].gradients(rows),
            "dense": lambda: ways[False].gradients(rows),
        },
        inner=40,
    )
    median = {name: statistics.median(values) for name, values in measured.items()}
    bare = min(median["sparse"], median["dense"])
    report(
        "diana_round",
        round(median["round"] / bare, 3),
        "CPU s of a round over those of the gradients alone",
        milliseconds={name: round(1e3 * value, 3) for name, value in median.items()},
    )


BENCHMARKS: dict[str, Callable[[], None]] = {f.__name__: f for f in (diana_round,)}
