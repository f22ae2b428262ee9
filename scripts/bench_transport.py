"""Benchmarks of federated optimal transport: the arithmetic of a round, without communication.

A round of ten clients is ten gradients of omega, one per client, and the server's ten Adam steps on
theta, each on batches of 1024. Each prints one JSON object a line: {"name", "value", "unit",
"detail"}. Seconds are CPU seconds of one process with one thread, median of ``detail.repeats``.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from mpifed.random import stream  # imports mpifed, which sets up MKL before torch starts

CLIENTS = 10
STEPS = 10
BATCH = 1024
REPEATS = 7


def report(name: str, value: float, unit: str, **detail: Any) -> None:
    """Print one figure as a line of JSON."""
    print(json.dumps({"name": name, "value": value, "unit": unit, "detail": detail}), flush=True)


def cpu_seconds(action: Callable[[], Any]) -> list[float]:
    """Return the CPU seconds of each of several calls, after one that warms up."""
    action()
    measured = []
    for _ in range(REPEATS):
        began = time.process_time()
        action()
        measured.append(time.process_time() - began)
    return measured


def transport_round(dimension: int) -> None:
    """Time a round of FedMM-OT, and beside it the ten joint gradients of a round of FedAdam."""
    import torch

    from mpifed.models.icnn import dense_icnn
    from mpifed.transport.adam import Adam
    from mpifed.transport.benchmark import random_icnn_benchmark
    from mpifed.transport.losses import Objective, conjugate_steps, joint_gradient, omega_gradient

    torch.set_num_threads(1)
    bench, model = random_icnn_benchmark(dimension, 0), dense_icnn(dimension)
    objective, adam = Objective(model), Adam(1e-3)
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
    medians = {name: statistics.median(cpu_seconds(part)) for name, part in parts.items()}
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


def main(names: list[str]) -> int:
    """Run the named benchmarks, or all; return 2 for a name there is not."""
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        known = ", ".join(BENCHMARKS)
        print(f"error: no benchmark {unknown[0]!r}; there are {known}", file=sys.stderr)
        return 2
    for name in names or BENCHMARKS:
        BENCHMARKS[name]()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
