"""Benchmarks of federated optimal transport: the arithmetic of a round, without communication.

A round of ten clients is ten gradients of omega, one per client, and the server's ten Adam steps on
theta, each on batches of 1024. Each prints one JSON object a line: {"name", "value", "unit",
"detail"}. Seconds are CPU seconds of one process with one thread, median of ``detail.repeats``.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from typing import Any

from bench_figures import cpu_seconds, report, run

from mpifed.random import stream  # imports mpifed, which sets up MKL before torch starts

CLIENTS = 10
STEPS = 10
BATCH = 1024
REPEATS = 7


def transport_round(dimension: int) -> None:
    """Time a round of FedMM-OT, and beside it the ten joint gradients of a round of FedAdam."""
    import torch

    from mpifed.algorithms.fedmm.transport import (
        FlatAdam,
        TransportObjective,
        conjugate_steps,
        joint_gradient,
        omega_gradient,
    )
    from mpifed.models.icnn import dense_icnn
    from mpifed.optimal_transport.benchmarks import random_icnn_benchmark

    torch.set_num_threads(1)
    bench, model = random_icnn_benchmark(dimension, 0), dense_icnn(dimension)
    objective, adam = TransportObjective(model), FlatAdam(1e-3)
    omega, theta = (torch.from_numpy(model.init(stream(0, "init", i))).float() for i in range(2))
    draws = stream(0, "batch")
    x = bench.sample_source(draws, CLIENTS * BATCH).split(BATCH)
    y = bench.sample_target(draws, CLIENTS * BATCH).split(BATCH)
    pairs = list(zip(x, y, strict=True))
    parts: dict[str, Callable[[], Any]] = {
        "clients": lambda: [omega_gradient(objective, omega, theta, *pair) for pair in pairs],
        "server": lambda: conjugate_steps(objective, omega, theta, adam, adam.init(theta), y),
        "joint": lambda: [joint_gradient(objective, omega, theta, *pair) for pair in pairs],
    }
    assert len(y) == STEPS
    medians = {name: statistics.median(cpu_seconds(part, REPEATS)) for name, part in parts.items()}
    report(
        f"transport_round_{dimension}",
        round(medians["clients"] + medians["server"], 4),
        "CPU s",
        clients=CLIENTS,
        batch=BATCH,
        server_steps=STEPS,
        n_parameters=model.n_parameters,
        repeats=REPEATS,
        parts={name: round(seconds, 4) for name, seconds in medians.items()},
    )


BENCHMARKS: dict[str, Callable[[], None]] = {
    f"transport_round_{d}": lambda d=d: transport_round(d) for d in (16, 32, 64)
}


if __name__ == "__main__":
    sys.exit(run(BENCHMARKS, sys.argv[1:]))
