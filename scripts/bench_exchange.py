"""Benchmarks of what an exchange costs beside bare MPI, at 1,000,000 numbers on two ranks.

``scripts/bench exchange`` runs all of them; each starts this file once more under mpirun.

* ``server_sum``: the sum over clients, less what turns the hosted rows into integers, over a bare
  Allreduce of as many int64.
* ``server_sum_by_node``: the same node by node in shared memory, over the same Allreduce.
* ``gossip_sum``: what moves rows in a round of gossip, over a bare neighbourhood collective of the
  same bytes; with the time of the whole round beside it.

Wall seconds are those of the slower rank, CPU seconds those of both; medians over turns in which
all ways follow each other.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_figures import report

RANKS, NUMBERS, CLIENTS, REPEATS = 2, 1_000_000, 8, 15


def on_ranks(what: str, numbers: int = NUMBERS, repeats: int = REPEATS) -> dict[str, Any]:
    """What ``what`` found on the ranks of a job of its own."""
    front = [os.environ.get("MPIRUN") or "mpirun", "-n", str(RANKS)]
    words = [sys.executable, str(Path(__file__).resolve()), what, str(numbers), str(repeats)]
    done = subprocess.run(
        [*front, *words], check=True, timeout=600, stdout=subprocess.PIPE, text=True
    )
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def seconds_of(
    communicator: Any, actions: Mapping[str, Callable[[], Any]], repeats: int
) -> dict[str, list[tuple[float, float]]]:
    """(wall seconds of the slower rank, CPU seconds of all) of each action, in turn. Collective."""
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in actions}
    for turn in range(repeats + 1):
        for name, action in actions.items():
            communicator.mpi4py.Barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            action()
            spent = (time.perf_counter() - wall, time.process_time() - cpu)
            every = communicator.gather_object(spent) or [spent]
            if turn:
                found[name].append((max(e[0] for e in every), sum(e[1] for e in every)))
    return found


def server(communicator: Any, numbers: int, repeats: int) -> dict[str, Any]:
    """Seconds of a server's sum and of what it is compared with. Collective."""
    import torch

    from mpifed.exchange import reduction
    from mpifed.exchange.reduction import weighted_sum

    ids = np.arange(CLIENTS)[communicator.rank :: communicator.size]
    generator = torch.Generator().manual_seed(communicator.rank)
    rows = torch.randn(len(ids), numbers, generator=generator)
    weights = np.full(len(ids), 1 / CLIENTS)
    whole, sums = np.empty(numbers, np.int64), communicator.node_sums(communicator.nodes())
    halves, comm = np.empty(numbers, np.float32), communicator.mpi4py
    made = np.empty((1, numbers), np.int64)
    own, one = np.ones(numbers, np.int64), np.ones(numbers, np.float32)

    def integers() -> None:
        reduction._moduli(rows)
        reduction._limbs(rows, weights, 57, 1, made)

    actions: dict[str, Callable[[], Any]] = {
        "sum": partial(weighted_sum, communicator, rows, weights, ids, CLIENTS),
        "by_node": partial(weighted_sum, communicator, rows, weights, ids, CLIENTS, sums=sums),
        "integers": integers,
        "int64": lambda: comm.Allreduce(own, whole),
        "float32": lambda: comm.Allreduce(one, halves),
    }
    return seconds_of(communicator, actions, repeats)


def gossip(communicator: Any, numbers: int, repeats: int) -> dict[str, Any]:
    """Seconds of a round of gossip and of a bare collective of its bytes. Collective."""
    import torch
    from mpi4py import MPI

    from mpifed.exchange.gossip import Gossip
    from mpifed.federation.clients import Federation

    owner = np.arange(CLIENTS) * communicator.size // CLIENTS
    federation = Federation(communicator, owner, owner < 0, np.ones(CLIENTS, np.int64))
    options: dict[str, Any] = {"topology": "ring", "weights": "metropolis_hastings"}
    options |= {"schedule": "static", "transport": "neighbourhood"}
    made = Gossip(federation, 0, Gossip.prepare(communicator, CLIENTS, 0, options), **options)
    everyone = np.ones(CLIENTS, bool)
    route = made.routing.route(1, everyone, 4)
    neighbours = made.routing.neighbourhood(route)
    rows = torch.ones(len(federation.hosted), numbers)
    flat = rows.numpy()
    sent, received = route.transfer.send, route.transfer.receive
    others = [peer for peer in range(communicator.size) if received[peer]]
    going = np.ones(sum(len(sent[peer]) for peer in others) * numbers, np.float32)
    coming = np.empty(sum(received) * numbers, np.float32)
    counts = [len(sent[peer]) * numbers for peer in others]
    arriving = [received[peer] * numbers for peer in others]

    def bare() -> None:
        neighbours.Neighbor_alltoallv(
            [going, counts, None, MPI.FLOAT], [coming, arriving, None, MPI.FLOAT]
        )

    def moved() -> None:
        for _ in made.routing.arrivals(route, flat):
            pass

    weights = torch.ones(len(rows), dtype=torch.float64)
    actions = {
        "moved": moved,
        "bare": bare,
        "round": lambda: made.at(1, everyone).average(rows, weights, rows),
    }
    return seconds_of(communicator, actions, repeats)


def medians(found: Mapping[str, list[list[float]]]) -> dict[str, dict[str, float]]:
    """Median wall and CPU seconds of each way."""
    return {
        name: {
            "wall": round(statistics.median(wall for wall, _ in every), 5),
            "cpu": round(statistics.median(cpu for _, cpu in every), 5),
        }
        for name, every in found.items()
    }


def server_sum(numbers: int = NUMBERS, repeats: int = REPEATS) -> None:
    """A server's sum, flat and by node, over a bare Allreduce."""
    found = medians(on_ranks("server", numbers, repeats))
    for name, way in (("server_sum", "sum"), ("server_sum_by_node", "by_node")):
        beyond = {key: found[way][key] - found["integers"][key] for key in ("wall", "cpu")}
        report(
            name,
            round(beyond["wall"] / found["int64"]["wall"], 3),
            "times a bare Allreduce of int64, wall, beyond turning rows into integers",
            cpu_ratio=round(beyond["cpu"] / found["int64"]["cpu"], 3),
            whole_over_float32=round(found[way]["wall"] / found["float32"]["wall"], 2),
            beyond_over_float32=round(beyond["wall"] / found["float32"]["wall"], 2),
            seconds=found,
            numbers=numbers,
            ranks=RANKS,
            hosted=CLIENTS // RANKS,
        )


def gossip_sum(numbers: int = NUMBERS, repeats: int = REPEATS) -> None:
    """Rows of gossip moved, over a bare neighbourhood collective of the same bytes."""
    found = medians(on_ranks("gossip", numbers, repeats))
    report(
        "gossip_rows",
        round(found["moved"]["wall"] / found["bare"]["wall"], 3),
        "times a bare neighbourhood collective of the same bytes, wall",
        cpu_ratio=round(found["moved"]["cpu"] / found["bare"]["cpu"], 3),
        round_over_bare=round(found["round"]["wall"] / found["bare"]["wall"], 2),
        seconds=found,
        numbers=numbers,
        ranks=RANKS,
    )


def main(what: str, numbers: str, repeats: str) -> None:
    """Measures on the ranks of this job; rank 0 prints."""
    import mpifed
    from mpifed.mpi.communicator import world

    assert mpifed.__version__
    communicator = world(RANKS)
    found = {"server": server, "gossip": gossip}[what](communicator, int(numbers), int(repeats))
    if communicator.rank == 0:
        print(json.dumps(found), flush=True)


BENCHMARKS: dict[str, Callable[[], None]] = {"server_sum": server_sum, "gossip_rows": gossip_sum}


if __name__ == "__main__":
    main(*sys.argv[1:])
