"""Benchmarks of what an exchange costs beside bare MPI and beside bare products.

``scripts/bench exchange`` runs all of them; those on two ranks start this file under mpirun.

* ``server_sum``: the sum of 1,000,000 numbers over clients on two ranks, over a bare Allreduce of
  as many float32; with it that sum without what each rank adds for itself.
* ``server_sum_bytes``: what the sum moves on 2 to 8 ranks, over an Allreduce that moves least.
* ``sum_error``: the error of a server's mean of 100,000 clients.
* ``gossip_rows``: a round of gossip of 1,000,000 numbers on two ranks, over a bare neighbourhood
  collective of the same bytes; with the time of what moves rows beside it.
* ``mixing``: a round of 32 clients of 670,000 numbers in one process, over ``W @ X`` in torch; and
  a server's mean over ``w @ X``.

Wall seconds are those of the slower rank, CPU seconds those of all; medians over turns in which
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

    from mpifed.federation.federation import Federation
    from mpifed.federation.reduction import _subtrees, weighted_sum

    owner = np.arange(CLIENTS) * communicator.size // CLIENTS
    federation = Federation(communicator, owner, owner < 0, np.ones(CLIENTS, np.int64))
    ids = federation.hosted
    generator = torch.Generator().manual_seed(communicator.rank)
    rows = torch.randn(len(ids), numbers, generator=generator)
    weights = np.full(len(ids), 1 / CLIENTS)
    subtrees = federation.tree.subtrees(ids, communicator.rank)
    one, whole = np.ones(numbers, np.float32), np.empty(numbers, np.float32)
    comm = communicator.mpi4py
    actions: dict[str, Callable[[], Any]] = {
        "sum": lambda: weighted_sum(federation, rows, weights, ids),
        "own": lambda: _subtrees(federation, rows, weights, subtrees),
        "float32": lambda: comm.Allreduce(one, whole),
    }
    return seconds_of(communicator, actions, repeats)


def gossip(communicator: Any, numbers: int, repeats: int) -> dict[str, Any]:
    """Seconds of a round of gossip and of a bare collective of its bytes. Collective."""
    import torch
    from mpi4py import MPI

    from mpifed.exchange.gossip import Gossip
    from mpifed.exchange.routes import arrivals
    from mpifed.federation.federation import Federation

    owner = np.arange(CLIENTS) * communicator.size // CLIENTS
    federation = Federation(communicator, owner, owner < 0, np.ones(CLIENTS, np.int64))
    options: dict[str, Any] = {"topology": "ring", "weights": "metropolis_hastings"}
    options |= {"schedule": "static"}
    made = Gossip(federation, 0, Gossip.prepare(communicator, CLIENTS, 0, options), **options)
    everyone = np.ones(CLIENTS, bool)
    route = made.routing.route(1, everyone)
    rows = torch.ones(len(federation.hosted), numbers)
    sent, received = route.transfer.send, route.transfer.receive
    others = sorted(received)
    neighbours = communicator.mpi4py.Create_dist_graph_adjacent(others, others)
    going = np.ones(sum(len(sent[peer]) for peer in others) * numbers, np.float32)
    coming = np.empty(sum(received.values()) * numbers, np.float32)
    counts = [len(sent[peer]) * numbers for peer in others]
    arriving = [received[peer] * numbers for peer in others]

    def bare() -> None:
        neighbours.Neighbor_alltoallv(
            [going, counts, None, MPI.FLOAT], [coming, arriving, None, MPI.FLOAT]
        )

    def moved() -> None:
        for _ in arrivals(communicator, route.transfer, rows):
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
    """A server's sum over a bare Allreduce of float32."""
    found = medians(on_ranks("server", numbers, repeats))
    bare = found["float32"]
    report(
        "server_sum",
        round(found["sum"]["wall"] / bare["wall"], 3),
        "times a bare Allreduce of float32, wall",
        cpu_ratio=round(found["sum"]["cpu"] / bare["cpu"], 3),
        beyond_own=round((found["sum"]["wall"] - found["own"]["wall"]) / bare["wall"], 3),
        seconds=found,
        numbers=numbers,
        ranks=RANKS,
        hosted=CLIENTS // RANKS,
    )


def server_sum_bytes() -> None:
    """Bytes of a server's sum over those of an Allreduce, for clients of unlike work."""
    from mpifed.federation.federation import Federation
    from mpifed.federation.placement import contiguous_owners
    from mpifed.federation.reduction import bytes_of_sum
    from mpifed.mpi.communicator import Alone

    n_train, ratios = np.random.default_rng(0).integers(20, 400, 300), {}
    for ranks in (2, 3, 4, 7, 8, 100):
        communicator = Alone()
        communicator.size = ranks
        owner = contiguous_owners(n_train.astype(float), ranks, n_train)
        moved = bytes_of_sum(Federation(communicator, owner, owner < 0, n_train), 1 << 30)
        ratios[ranks] = round(moved / (2 * (ranks - 1) << 30), 3)
    mean = float(np.mean([ratios[ranks] for ranks in (2, 3, 4, 7, 8)]))
    report("server_sum_bytes", round(mean, 3), "times an Allreduce's bytes", by_ranks=ratios)


def sum_error(clients: int = 100_000, numbers: int = 20) -> None:
    """Largest error of a server's float32 mean of 100,000 clients, and of ``w @ X``'s."""
    import torch

    from mpifed.federation.federation import Federation
    from mpifed.federation.reduction import weighted_sum
    from mpifed.mpi.communicator import Alone

    torch.set_num_threads(1)
    draws, ids = np.random.default_rng(0), np.arange(clients)
    n_train = draws.integers(20, 500, clients)
    federation = Federation(Alone(), 0 * ids, ids < 0, n_train)
    rows = torch.from_numpy(draws.standard_normal((clients, numbers)).astype(np.float32) + 3)
    weights = n_train / n_train.sum()
    exact = (rows.numpy().astype(np.longdouble) * weights[:, None]).sum(0)

    def error(found: torch.Tensor) -> float:
        return float(np.abs(found.numpy() - exact).max() / np.abs(exact).max())

    total = weighted_sum(federation, rows, weights, ids)
    ones = weighted_sum(federation, torch.ones(clients, 1), weights, ids)
    report(
        "sum_error",
        error(total),
        "relative; half a unit in the last place is 6e-8",
        product=error(torch.from_numpy(weights).float() @ rows),
        sum_of_weights=float(ones) - 1,
    )


def gossip_sum(numbers: int = NUMBERS, repeats: int = REPEATS) -> None:
    """A round of gossip over a bare neighbourhood collective of the same bytes."""
    found = medians(on_ranks("gossip", numbers, repeats))
    report(
        "gossip_rows",
        round(found["round"]["wall"] / found["bare"]["wall"], 3),
        "times a bare neighbourhood collective of the same bytes, wall",
        cpu_ratio=round(found["round"]["cpu"] / found["bare"]["cpu"], 3),
        moved_over_bare=round(found["moved"]["wall"] / found["bare"]["wall"], 2),
        seconds=found,
        numbers=numbers,
        ranks=RANKS,
    )


def mixing(numbers: int = 670_000, repeats: int = 7) -> None:
    """Rounds of gossip and of a server's mean in one process over products in torch."""
    import torch

    from mpifed.exchange.gossip import Gossip
    from mpifed.exchange.server import Server
    from mpifed.federation.federation import Federation
    from mpifed.mpi.communicator import Alone

    torch.set_num_threads(1)
    clients, alone = 32, Alone()
    ids, everyone = np.arange(clients), np.ones(clients, bool)
    federation = Federation(alone, 0 * ids, ids < 0, ids * 0 + 1)
    rows = torch.randn(clients, numbers)
    weights = torch.full((clients,), 1 / clients, dtype=torch.float64)
    seconds: dict[str, list[float]] = {}

    def spent(name: str, action: Callable[[], Any]) -> None:
        began = time.perf_counter()
        action()
        seconds.setdefault(name, []).append(time.perf_counter() - began)

    exchanges = {}
    for name in ("exponential", "ring", "erdos_renyi"):
        options = {"topology": name, "weights": "metropolis_hastings", "schedule": "static"}
        prepared = Gossip.prepare(alone, clients, 0, options)
        exchanges[name] = Gossip(federation, 0, prepared, **options)
    server, w = Server(federation, 0), weights.float()
    dense = torch.from_numpy(exchanges["erdos_renyi"].schedule.matrix(1).to_dense()).float()
    for _ in range(repeats + 1):
        for name, made in exchanges.items():
            spent(name, lambda made=made: made.at(1, everyone).average(rows, weights, rows))
        spent("W @ X", lambda: dense @ rows)
        spent("server", lambda: server.at(1, everyone).average(rows, weights, rows[0]))
        spent("w @ X", lambda: w @ rows)
    middle = {name: statistics.median(each[1:]) for name, each in seconds.items()}
    over = {name: round(middle[name] / middle["W @ X"], 2) for name in exchanges}
    report(
        "mixing",
        over["exponential"],
        "times W @ X in torch, wall",
        **over,
        server=round(middle["server"] / middle["w @ X"], 2),
        seconds={name: round(value, 4) for name, value in middle.items()},
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


BENCHMARKS: dict[str, Callable[[], None]] = {
    "server_sum": server_sum,
    "server_sum_bytes": server_sum_bytes,
    "sum_error": sum_error,
    "gossip_rows": gossip_sum,
    "mixing": mixing,
}


if __name__ == "__main__":
    main(*sys.argv[1:])
