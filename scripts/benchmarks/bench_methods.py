"""Benchmark of methods: seconds of a round beside those that its gradients allow.

``scripts/bench methods`` runs it. The clients are the 300 of the released synthetic benchmark. A
local-epoch equivalent is a gradient on as many samples as all clients have; each model of a client
counts. They are counted while the same rounds run once more.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from bench_figures import clock, engine, report

BLOCKS, ROUNDS = 5, 4
"""Medians are of so many blocks of so many rounds; some methods draw the steps of a round."""

A_ROUND, AN_EPOCH = 0.03, 0.02
"""Seconds of a round, and besides of each of its local-epoch equivalents."""

BASE = {"data.n_test": 20, "local.lr": 0.1, "local.momentum": 0.9, "local.weight_decay": 5e-4}
PLAIN = {"local.momentum": 0.0, "local.weight_decay": 0.0}
BIAS = {"algorithm.head": ["bias"]}

METHODS: dict[str, dict[str, Any]] = {
    "local": {},
    "fedavg": {},
    "fedavg_ft": {},
    "fedprox": {},
    "scaffold": {"local.momentum": 0.0},
    "qffl": {},
    "agnostic": {},
    "fedem": {},
    "fedgmm": {},
    "clustered": {},
    "ifca": {},
    "fedper": BIAS,
    "fedrep": BIAS,
    "fedbabu": BIAS,
    "fedala": BIAS,
    "knn_per": {},
    "fedrod": {},
    "fedrod_hyper": {},
    "ditto": {},
    "apfl": {},
    "pfedme": {},
    "l2gd": PLAIN,
    "l2sgd": PLAIN,
}
"""Methods that train the benchmark's linear model, with what they need to do so."""

NETWORKS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "fedper": {},
    "fedrep": {},
    "fedbabu": {},
    "fedbn": {},
}
"""Methods whose parts are layers of a network."""


def normalised(data: Any) -> Any:
    """Return a perceptron with 16 hidden units and batch normalisation."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(data.input_shape[0], 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1)
    )


def seconds(made: Any) -> list[float]:
    """Return the seconds of a round in each block, the first round of all not counted."""
    made.advance()
    found = []
    for _ in range(BLOCKS):
        began = clock()
        for _ in range(ROUNDS):
            made.advance()
        found.append((clock() - began) / ROUNDS)
    return found


@contextmanager
def counted() -> Iterator[list[int]]:
    """Count the samples on which linear models compute gradients, as the list's one number."""
    from mpifed.models.linear import Linear

    slopes, found = Linear._slopes, [0]

    def counting(self: Any, parameters: Any, x: Any, y: Any, weights: Any) -> Any:
        found[0] += int((weights != 0).sum())
        return slopes(self, parameters, x, y, weights)

    Linear._slopes = counting  # type: ignore[method-assign]
    try:
        yield found
    finally:
        Linear._slopes = slopes  # type: ignore[method-assign]


def epochs(made: Any) -> list[float]:
    """Return the local-epoch equivalents of a round in each block of ``seconds``."""
    made.advance()
    samples, found = made.setup.federation.n_train_total, []
    with counted() as count:
        for _ in range(BLOCKS):
            before = count[0]
            for _ in range(ROUNDS):
                made.advance()
            found.append((count[0] - before) / ROUNDS / samples)
    return found


def method(name: str, options: dict[str, Any]) -> None:
    """Report the seconds of a round of a method that trains a linear model."""
    overrides = {**BASE, "algorithm": name, **options}
    measured = seconds(engine("synthetic-released", **overrides))
    equivalents = epochs(engine("synthetic-released", **overrides))
    limits = [A_ROUND + AN_EPOCH * each for each in equivalents]
    share = statistics.median(a / b for a, b in zip(measured, limits, strict=True))
    report(
        f"methods {name}",
        round(statistics.median(measured), 4),
        "CPU s a round",
        epoch_equivalents=round(statistics.median(equivalents), 2),
        limit=round(statistics.median(limits), 3),
        of_limit=round(share, 2),
        met=share <= 1,
        all=[round(each, 4) for each in measured],
    )


def network(name: str, options: dict[str, Any], average: list[float]) -> None:
    """Report the seconds of a round of a network, and as a multiple of FedAvg's in ``average``."""
    made = engine(
        "synthetic-released",
        **{**BASE, "model": "bench_methods:normalised", "algorithm": name, **options},
    )
    measured = seconds(made)
    average[:] = average or measured
    report(
        f"methods {name} (perceptron)",
        round(statistics.median(measured), 3),
        "CPU s a round",
        of_fedavg=round(statistics.median(measured) / statistics.median(average), 2),
        all=[round(each, 3) for each in measured],
    )


def methods() -> None:
    """A round of every method, beside 0.03 s and 0.02 s for each local-epoch equivalent."""
    for name, options in METHODS.items():
        method(name, options)
    average: list[float] = []
    for name, options in NETWORKS.items():
        network(name, options, average)


BENCHMARKS: dict[str, Callable[[], None]] = {"methods": methods}
