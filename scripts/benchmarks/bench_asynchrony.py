"""Benchmarks of gossip without waiting: CPU seconds of a computation, over gossip in rounds.

``asynchrony`` runs 100 clients until they have finished 1000 computations between them, in rounds
that all have in common and without waiting, for D-FedEM of 20 steps (batch 128, 150 inputs, 3
components) and for FedAvg of 20 steps with a small network; clients' computing times differ by
a factor exp(0.5 z).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bench_figures import clock, engine, report

COMPUTATIONS, WARM, CLIENTS = 1000, 3, 100
CASES: dict[str, dict[str, Any]] = {
    "dfedem": {"local.steps": 20, "local.batch_size": 128, "data.dimension": 150},
    "network": {
        "local.steps": 20,
        "algorithm": "fedavg",
        "model": {"name": "mlp", "hidden": [200]},
    },
}
GOSSIP: dict[str, Any] = {
    "clients": CLIENTS,
    "data.n_test": 10,
    "exchange": "gossip",
    "exchange.topology": {"name": "erdos_renyi", "p": 0.1, "seed": 1},
    "exchange.weights": "metropolis_hastings",
    "compute": {"name": "lognormal", "seconds": 0.1, "client_sigma": 0.5},
}


def seconds_of(case: dict[str, Any], mixes: str) -> tuple[float, int]:
    """CPU seconds of a computation, and the rounds that all of them took."""
    made = engine("synthetic-fedem", **{**GOSSIP, **case, "exchange.asynchrony": mixes})
    for _ in range(WARM):
        made.advance()
    done, rounds, began = 0, 0, clock()
    while done < COMPUTATIONS:
        made.advance()
        made.agree(False)
        done, rounds = done + made.active, rounds + 1
    return (clock() - began) / done, rounds


def asynchrony() -> None:
    """Every case in each of the three ways."""
    for title, case in CASES.items():
        together, _ = seconds_of(case, "none")
        for mixes in ("wait_free", "pairwise"):
            alone, rounds = seconds_of(case, mixes)
            report(
                f"asynchrony_{mixes}_{title}",
                round(alone / together, 3),
                "times the CPU of gossip in rounds, for as many computations",
                cpu_seconds=round(alone, 5),
                in_rounds=round(together, 5),
                rounds=rounds,
            )


BENCHMARKS: dict[str, Callable[[], None]] = {"asynchrony": asynchrony}
