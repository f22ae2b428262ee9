"""Benchmarks of corrected gossip: CPU seconds of a message, over those of plain gossip.

``corrections`` mixes 100 clients of 20,000 float32 numbers over a ring and over an Erdos-Renyi
graph of mean degree 10, with every correction in turn, and prints the least seconds of a round over
those of plain gossip and over the messages of an edge: 2 for tracking, 1 for others.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from bench_figures import in_turn, report

CLIENTS, NUMBERS, REPEATS = 100, 20_000, 30
RING = {"topology": "ring", "weights": "metropolis_hastings"}
TENTH = {"name": "erdos_renyi", "p": 0.1, "seed": 1}
GRAPHS: dict[str, dict[str, Any]] = {
    "ring": RING,
    "erdos_renyi_0.1": {**RING, "topology": TENTH},
}
NAMES = ("none", "tracking", "extra", "exact_diffusion", "quasi_global", "decentlam", "push_sum")


def exchange_of(correction: str, graph: dict[str, Any]) -> Any:
    """Gossip among all clients on one rank."""
    from mpifed.exchange.gossip import Gossip
    from mpifed.exchange.mixing_options import completed_options
    from mpifed.federation.federation import Federation
    from mpifed.mpi.communicator import Alone

    given = {**graph, "schedule": "static", "transport": "auto", "consensus_step": None}
    options = completed_options({**given, "correction": correction}, CLIENTS)
    stored = Gossip.prepare(Alone(), CLIENTS, 0, options)
    nodes = np.arange(CLIENTS)
    federation = Federation(Alone(), 0 * nodes, nodes < 0, np.ones(CLIENTS, np.int64))
    return Gossip(federation, 0, stored, **options)


def one_round(exchange: Any, x: Any, moved: Any) -> Callable[[], None]:
    """A round from the memory that the last one has left."""
    import torch

    memory = exchange.remember([x], len(x), x.dtype)
    weights, everyone = torch.ones(len(x), dtype=torch.float64), np.ones(len(x), bool)

    def action() -> None:
        nonlocal memory
        channel = exchange.at(1, everyone, memory)
        channel.average(moved, weights, before=x)
        memory = channel.memory

    return action


def corrections() -> None:
    """Every correction in turn on both graphs."""
    import torch

    torch.set_num_threads(1)
    x = torch.randn(CLIENTS, NUMBERS, generator=torch.Generator().manual_seed(0))
    for title, graph in GRAPHS.items():
        made = {name: exchange_of(name, graph) for name in NAMES}
        rounds = {name: one_round(each, x, 0.9 * x) for name, each in made.items()}
        least = {name: min(found) for name, found in in_turn(rounds, REPEATS).items()}
        for name in NAMES[1:]:
            messages = made[name].correction.numbers(NUMBERS) / NUMBERS
            report(
                f"correction_{name}_{title}",
                round(least[name] / least["none"] / messages, 3),
                "times the CPU of plain gossip per message",
                round_cpu_seconds=round(least[name], 4),
                plain=round(least["none"], 4),
            )


BENCHMARKS: dict[str, Callable[[], None]] = {"corrections": corrections}
