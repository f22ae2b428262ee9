"""Benchmarks of robust aggregation and noise: CPU seconds of a server's round.

``aggregators`` aggregates the float32 updates of 100 clients, 100,000 numbers each, in turn by the
mean and every other aggregator, by clipping, and with noise of the server and of the clients, on
one rank with one thread.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from bench_figures import in_turn, report

CLIENTS, NUMBERS, REPEATS = 100, 100_000, 5
WAYS: dict[str, dict[str, Any]] = {
    "mean": {},
    "clip": {"clip": 100.0},
    "median": {"aggregator": "median"},
    "trimmed_mean": {"aggregator": "trimmed_mean"},
    "krum": {"aggregator": "krum"},
    "geometric_median": {"aggregator": "geometric_median"},
}


def aggregators() -> None:
    """Every aggregator in turn."""
    import torch

    from mpifed.exchange.privacy import LocalNoise
    from mpifed.exchange.server import Server
    from mpifed.federation.federation import Federation
    from mpifed.federation.options import PrivacyOptions
    from mpifed.mpi.communicator import Alone

    torch.set_num_threads(1)
    rows = torch.randn(CLIENTS, NUMBERS, generator=torch.Generator().manual_seed(0))
    nodes, everyone = np.arange(CLIENTS), np.ones(CLIENTS, bool)
    federation = Federation(Alone(), 0 * nodes, nodes < 0, np.ones(CLIENTS, np.int64))
    weights, before = torch.full((CLIENTS,), 1 / CLIENTS).double(), torch.zeros(NUMBERS)
    options = PrivacyOptions(noise_multiplier=1.0, clip_norm=100.0)
    rounds: dict[str, Callable[[], None]] = {}
    for name, given in WAYS.items():
        server = Server(federation, 0, **given)
        rounds[name] = lambda server=server: server.at(1, everyone).average(rows, weights, before)
    for where in ("central", "local"):

        def private(where: Any = where) -> None:
            server = Server(federation, 0)
            server.privacy = replace(options, where=where)
            server.transforms = [LocalNoise(options)] if where == "local" else []
            server.at(1, everyone).average(rows, weights, before)

        rounds[where] = private
    for name, found in in_turn(rounds, REPEATS).items():
        every = [round(seconds, 4) for seconds in found]
        report(f"aggregator_{name}", min(every), "CPU s", all=every)


BENCHMARKS: dict[str, Callable[[], None]] = {"aggregators": aggregators}
