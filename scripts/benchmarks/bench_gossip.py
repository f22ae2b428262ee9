"""Benchmarks of one round of gossip: 100 clients of 1,000,000 float32 numbers on 4 ranks.

``scripts/bench [NAME ...]`` runs them: each starts this file once more under mpirun. Clients live
in blocks of 25, the weights are Metropolis-Hastings.

* ``gossip_ring`` and the other topologies print what MPI moved in a round, over the best of "all
  rows everywhere" and "each row once to each rank that mixes it"; and by how much a round raises
  the peak memory of a rank, over the rows that the round gives back and those the rank receives.
* ``gossip_transfer``: seconds of a Sendrecv for each edge between two ranks, over those of the
  round without its arithmetic.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from bench_figures import report

RANKS, CLIENTS, NUMBERS, SEED = 4, 100, 1_000_000, 1234
REPEATS = 3
TOPOLOGIES: dict[str, dict[str, Any]] = {
    "ring": {"name": "ring"},
    "torus": {"name": "torus"},
    "erdos_renyi_0.05": {"name": "erdos_renyi", "p": 0.05},
    "erdos_renyi_0.5": {"name": "erdos_renyi", "p": 0.5},
    "star": {"name": "star"},
}


def on_ranks(case: str) -> dict[str, Any]:
    """What ``measure`` found for the topology ``case`` on ``RANKS`` ranks."""
    front = [os.environ.get("MPIRUN") or "mpirun", "-n", str(RANKS)]
    done = subprocess.run(
        [*front, sys.executable, str(Path(__file__).resolve()), case],
        check=True,
        timeout=1800,
        stdout=subprocess.PIPE,
        text=True,
    )
    return dict(json.loads(done.stdout.strip().splitlines()[-1]))


def one_topology(case: str) -> None:
    """Bytes that MPI moves in a round, and memory that it takes on the rank nearest its bound."""
    found = on_ranks(case)
    report(
        f"gossip_bytes_{case}",
        round(found["sent"] / found["best"], 3),
        "times the best of all rows everywhere and distinct rows once per pair of ranks",
        **{key: found[key] for key in ("sent", "everywhere", "distinct")},
        round_cpu_seconds=found["round_cpu_seconds"],
    )
    names = ("rise", "given_back", "received")
    report(
        f"gossip_memory_{case}",
        round(nearness(found["memory"]), 3),
        "times the rows given back and the rows received",
        megabytes={k: round(n / 1e6, 1) for k, n in zip(names, found["memory"], strict=True)},
    )


def transfer() -> None:
    """Transfer time against a Sendrecv per edge, p = 0.5."""
    found = on_ranks("erdos_renyi_0.5")
    ways = {key: found[key] for key in ("ours", "sendrecv", "patient_sendrecv")}
    middle = {key: statistics.median(wall for wall, _ in all_) for key, all_ in ways.items()}
    naive = min(middle["sendrecv"], middle["patient_sendrecv"])
    report(
        "gossip_transfer",
        round(naive / middle["ours"], 1),
        "times faster than a Sendrecv per edge, wall",
        wall_seconds={key: round(value, 3) for key, value in middle.items()},
        cpu_seconds_of_all_ranks={
            key: round(statistics.median(cpu for _, cpu in all_), 3) for key, all_ in ways.items()
        },
        edges_between_ranks=found["crossing"],
        cores=os.cpu_count(),
    )


def measure(case: str) -> dict[str, Any]:
    """One topology on the ranks of this job; collective. The result is complete on rank 0."""
    gossip, rows = federation_of(case)
    communicator = gossip.federation.communicator
    route = gossip.routing.route(1, np.ones(CLIENTS, bool))
    found = one_round(gossip, route, rows)
    if case == "erdos_renyi_0.5":
        flat = rows.numpy()
        found |= {
            "crossing": len(crossing_edges(route)),
            "ours": timed(communicator, lambda: follow(communicator, route, rows)),
            "sendrecv": timed(communicator, lambda: per_edge(communicator, route, flat, False)),
            "patient_sendrecv": timed(
                communicator, lambda: per_edge(communicator, route, flat, True)
            ),
        }
    return found


def federation_of(case: str) -> tuple[Any, Any]:
    """The exchange over the topology ``case``, and the rows of the clients of this rank."""
    import torch

    from mpifed.exchange.gossip import Gossip
    from mpifed.federation.federation import Federation
    from mpifed.mpi.communicator import world

    communicator = world(RANKS)
    owner = np.arange(CLIENTS) * RANKS // CLIENTS
    federation = Federation(communicator, owner, owner < 0, np.ones(CLIENTS, np.int64))
    options = {
        "topology": TOPOLOGIES[case],
        "weights": "metropolis_hastings",
        "schedule": "static",
    }
    stored = Gossip.prepare(communicator, CLIENTS, SEED, options)
    rows = torch.empty(len(federation.hosted), NUMBERS)
    rows.normal_(generator=torch.Generator().manual_seed(communicator.rank))
    return Gossip(federation, SEED, stored, **options), rows


def average(gossip: Any, rows: Any) -> Any:
    """A whole round, as an algorithm asks for it."""
    import torch

    weights = torch.ones(len(rows), dtype=torch.float64)
    return gossip.at(1, np.ones(CLIENTS, bool)).average(rows, weights, rows)


def one_round(gossip: Any, route: Any, rows: Any) -> dict[str, Any]:
    """What a round sends and how much memory it takes; complete on rank 0. Collective.

    Memory: the peak afterwards without what was resident before, what the round gives back, and
    what the rank receives.
    """
    communicator = gossip.federation.communicator
    # Routes, libraries and MPI's own buffers are there before memory is looked at.
    average(gossip, rows[:, : NUMBERS // 500].clone())
    before, sent, began = resident(), communicator.bytes_sent, time.process_time()
    mixed = average(gossip, rows)
    cpu, sent = time.process_time() - began, communicator.bytes_sent - sent
    rise = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    size = rows.element_size() * NUMBERS
    received = len(route.transfer.arriving)
    every = communicator.gather_object((sent, cpu, (rise, mixed.nbytes, received * size)))
    everywhere = CLIENTS * (communicator.size - 1) * size
    distinct = route.rows_moved * size
    return {
        "sent": sum(one[0] for one in every or ()),
        "everywhere": everywhere,
        "distinct": distinct,
        "best": min(everywhere, distinct),
        "round_cpu_seconds": [round(one[1], 2) for one in every or ()],
        "memory": max((one[2] for one in every or ()), key=nearness, default=()),
    }


def nearness(memory: tuple[int, int, int]) -> float:
    """The rise in memory over what it may be."""
    rise, given_back, received = memory
    return rise / (given_back + received)


def resident() -> int:
    """Bytes of memory that this process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def timed(communicator: Any, action: Callable[[], None]) -> list[tuple[float, float]]:
    """(wall seconds of the slowest rank, CPU seconds of all) of ``REPEATS`` calls, after one."""
    measured = []
    for _ in range(REPEATS + 1):
        communicator.barrier()
        wall, cpu = time.perf_counter(), time.process_time()
        action()
        spent = np.array([time.perf_counter() - wall, time.process_time() - cpu])
        every = communicator.gather_object(spent) or [spent]
        measured.append((float(max(e[0] for e in every)), float(sum(e[1] for e in every))))
    return measured[1:]


def follow(communicator: Any, route: Any, rows: Any) -> None:
    """A round without its arithmetic."""
    from mpifed.exchange.routes import arrivals

    for _ in arrivals(communicator, route.transfer, rows):
        pass


def crossing_edges(route: Any) -> np.ndarray:
    """The edges between two ranks, int64 (edges, 2), in one order for all."""
    edges = route.matrix.edges
    return edges[route.owner[edges[:, 0]] != route.owner[edges[:, 1]]]


def per_edge(communicator: Any, route: Any, flat: np.ndarray, patient: bool) -> None:
    """The rows of both ends of each edge between ranks, swapped one edge after the other.

    ``patient`` waits as mpifed does, which leaves the core to other ranks where there are more
    ranks than cores; otherwise it is the library's blocking Sendrecv.
    """
    comm, wait, arriving = communicator.mpi4py, communicator._wait, np.empty_like(flat[0])
    for i, j in crossing_edges(route).tolist():
        for mine, other in ((i, j), (j, i)):
            if route.owner[mine] != communicator.rank:
                continue
            row, peer = flat[np.searchsorted(route.mine, mine)], int(route.owner[other])
            if patient:
                wait(comm.Isend(row, peer), comm.Irecv(arriving, peer))
            else:
                comm.Sendrecv(row, peer, recvbuf=arriving, source=peer)


BENCHMARKS: dict[str, Callable[[], None]] = {
    **{f"gossip_{case}": partial(one_topology, case) for case in TOPOLOGIES},
    "gossip_transfer": transfer,
}


if __name__ == "__main__":
    import mpifed

    assert mpifed.__version__
    result = measure(sys.argv[1])
    if result["memory"]:
        print(json.dumps(result), flush=True)
