"""Algorithm 3 on pooled data: what one client with all samples computes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mpifed.algorithms.fedmm.transport import (
    SCORED,
    FlatAdam,
    TransportObjective,
    conjugate_steps,
    identity_potential,
    l2_uvp,
    omega_gradient,
)
from mpifed.optimal_transport.benchmarks import Benchmark
from mpifed.random import stream


@dataclass(frozen=True)
class Setting:
    rounds: int
    lr: float
    conjugate_lr: float = 1e-3
    inner: int = 10
    batch_size: int = 1024


def alternate(
    objective: TransportObjective, benchmark: Benchmark, setting: Setting, dtype
) -> list[float]:
    """L2-UVP before the first round and after the last, steps on omega being plain SGD."""
    model = objective.model
    omega = identity_potential(model, stream(0, "init"), dtype)
    theta, optimizer = omega, FlatAdam(setting.conjugate_lr)
    state = optimizer.init(theta)
    scores = [score(objective, benchmark, omega)]
    for round in range(1, setting.rounds + 1):
        draws, size = stream(0, "batch", round), setting.batch_size
        x = benchmark.sample_source(draws, size, dtype)
        y = benchmark.sample_target(draws, size, dtype)
        gradient = omega_gradient(objective, omega, theta, x, y)
        omega = model.convexify(omega - setting.lr * gradient)
        batches = benchmark.sample_target(draws, setting.inner * size, dtype).split(size)
        theta, state = conjugate_steps(objective, omega, theta, optimizer, state, batches)
    return [*scores, score(objective, benchmark, omega)]


def score(objective: TransportObjective, benchmark: Benchmark, omega: Tensor) -> float:
    x = benchmark.sample_source(stream(0, "score"), SCORED, omega.dtype)
    return l2_uvp(objective.model.push(omega, x), benchmark, x)
