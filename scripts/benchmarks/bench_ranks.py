"""Benchmarks of what ranks send each other: counted, as functions of ranks and of clients.

``scripts/bench rank_counts`` counts the calls of MPI in jobs of 8 to 64 ranks (``BENCH_RANKS=128``
for more), from outside: this file, started as a rank, puts itself between mpifed and mpi4py. What
a library makes of a collective is its own; here each is a tree (log2 ranks messages a rank), and an
allgather a ring. ``scripts/bench rank_plans`` reads messages and bytes of a server's sum and of a
round of gossip for 16 to 4,096 ranks off what each of them would do, in one process.
"""

from __future__ import annotations

import collections
import json
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from bench_figures import report

import topologies
from mpifed.exchange.routes import Route
from mpifed.federation.federation import Federation
from mpifed.federation.placement import contiguous_owners
from mpifed.federation.reduction import pieces_of
from mpifed.mpi.communicator import Alone

RANKS, PLAYED = (8, 16, 32, 64), (16, 64, 256, 1024, 4096)
ROUNDS = 4
WORDS = (
    *("synthetic-fedem", "algorithm=fedavg", f"rounds={ROUNDS}", f"evaluation.every={ROUNDS}"),
    *("data.n_test=5", "data.dimension=5", f"checkpoint.every={ROUNDS}", "--quiet"),
)
GRAPHS = ("ring", "torus", "exponential", "erdos_renyi")

PLACES = {
    ("evaluation.py", "evaluate"): "evaluation",
    ("engine.py", "digest"): "evaluation",
    ("files.py", "write"): "checkpoint",
    ("engine.py", "advance"): "round",
    ("engine.py", "agree"): "round",
}
"""What counts as what, by the outermost of these functions; else it is of the start or the end."""

COUNTED = ("Isend", "Irecv", "Ibarrier", "Iallreduce", "Iallgatherv", "Ibcast")

TIMES = {"evaluation": 2, "round": ROUNDS, "checkpoint": 1, "start_and_end": 1}


class Counted:
    """A communicator of mpi4py whose calls are counted: (messages, bytes) by purpose."""

    def __init__(self, comm: Any, ledger: Any) -> None:
        self._comm, self._ledger = comm, ledger

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._comm, name)
        if name not in COUNTED:
            return real

        def called(*arguments: Any) -> Any:
            found = real(*arguments)
            messages, nbytes = self._cost(name, arguments)
            entry = self._ledger[purpose()]
            entry[0] += messages
            entry[1] += nbytes
            return found

        return called

    def _cost(self, name: str, arguments: Any) -> tuple[int, int]:
        size = self._comm.Get_size()
        levels = math.ceil(math.log2(size))
        if name == "Iallgatherv":
            return size - 1, arguments[1][0].nbytes
        if name in ("Isend", "Irecv"):
            return 1, arguments[0].nbytes
        if name in ("Ibarrier", "Iallreduce", "Ibcast"):
            return levels, levels * sum(values.nbytes for values in arguments[:1])
        raise AssertionError(name)


def purpose() -> str:
    """What is being done, found from the calls that led here."""
    frame, found = sys._getframe(), "start_and_end"
    while frame is not None:
        code = frame.f_code
        found = PLACES.get((os.path.basename(code.co_filename), code.co_name), found)
        frame = frame.f_back
    return found


def count(folder: str, words: list[str]) -> int:
    """A run whose calls of MPI are counted, on this rank."""
    from mpifed.mpi import over_mpi4py

    ledger: Any = collections.defaultdict(lambda: [0, 0])
    comms = over_mpi4py._comms()
    names = ("comm", "aside", "other", "local")
    counted = comms._replace(**{name: Counted(getattr(comms, name), ledger) for name in names})
    over_mpi4py._comms = lambda: counted  # type: ignore[assignment]
    from mpifed.launch import main

    code = main(words)
    text = Path("/proc/self/smaps_rollup").read_text()
    private = sum(map(int, re.findall(r"Private_\w+: +(\d+)", text)))
    found = {**ledger, "private_kib": private}
    (Path(folder) / f"{comms.comm.Get_rank()}.json").write_text(json.dumps(found))
    return code


def counted(ranks: int, *words: str) -> dict[str, Any]:
    """For each purpose: (messages, bytes) of rank 0, and of all ranks over their number."""
    with tempfile.TemporaryDirectory() as folder:
        front = [os.environ.get("MPIRUN", "mpirun"), "-n", str(ranks), sys.executable, __file__]
        words = (folder, *WORDS, *words, f"--output={folder}/run")
        subprocess.run([*front, *words], check=True)
        every = [json.loads((Path(folder) / f"{r}.json").read_text()) for r in range(ranks)]
    found: dict[str, Any] = {"private_kib": max(each["private_kib"] for each in every)}
    for name, times in TIMES.items():
        one = np.array([each.get(name, [0, 0]) for each in every]) / times
        found[name] = [one[0].round().tolist(), one.mean(0).round().tolist()]
    return found


def rank_counts() -> None:
    """Messages and bytes of each part of a run by ranks, a client each, and then by clients."""
    asked = os.environ.get("BENCH_RANKS")
    for ranks in [int(asked)] if asked else RANKS:
        for how in ("exchange=server", "exchange=gossip exchange.topology=ring"):
            found = counted(ranks, *how.split(), f"clients={ranks}")
            value = found["start_and_end"][0][0]
            report("rank_counts", value, "messages of rank 0", ranks=ranks, how=how, **found)
    few, many = (counted(4, f"clients={n}") for n in (400, 4400))
    for name in TIMES:
        slope = round((many[name][0][1] - few[name][0][1]) / 4000, 1)
        report("bytes_a_client", slope, "bytes that rank 0 sends or receives", part=name)


def of_sum(ranks: int, numbers: int) -> list[tuple[int, int]]:
    """Messages and bytes that each rank sends in a server's sum of float32."""
    work = np.random.default_rng(0).integers(20, 400, 4 * ranks)
    owner, found = contiguous_owners(work.astype(float), ranks, work), []
    federation = Federation(played(0, ranks), owner, owner < 0, work)
    pieces = pieces_of(federation, 4 * numbers)
    width = -(-numbers // pieces) * 4
    for rank in range(ranks):
        stages = federation.tree.stages(rank, ranks, pieces)
        going = [sent for stage in stages for sent in (stage.send, stage.back)]
        rows = [len(rows) for sent in going for peer, rows in sent.items() if peer != rank]
        found.append((np.count_nonzero(rows), sum(rows) * width))
    return found


def of_gossip(ranks: int, graph: str) -> list[tuple[int, int]]:
    """Messages and rows that up to 64 of the ranks send in a round of gossip, a client each."""
    options = {"p": 2 * math.log(ranks) / ranks} if graph == "erdos_renyi" else {}
    made = topologies.build_graph(graph, ranks, seed=0, **options)
    matrix = topologies.mixing_matrix(made, "metropolis_hastings")
    owner, found = np.arange(ranks, dtype=np.int32), []
    for rank in range(0, ranks, max(1, ranks // 64)):
        federation = Federation(played(rank, ranks), owner, owner < 0, owner + 1)
        sent = Route(federation, matrix, owner >= 0).transfer.send
        found.append((len(sent), sum(map(len, sent.values()))))
    return found


def played(rank: int, ranks: int) -> Alone:
    """A communicator that knows its number, and sends nothing."""
    made = Alone()
    made.rank, made.size = rank, ranks
    return made


def rank_plans() -> None:
    """Messages and bytes of a rank in a server's sum and in a round of gossip."""
    for ranks in PLAYED:
        plans = {f"sum of {n} float32": of_sum(ranks, n) for n in (1000, 1_000_000)}
        plans |= {graph: of_gossip(ranks, graph) for graph in GRAPHS}
        for what, found in plans.items():
            most, mean = np.max(found, axis=0).tolist(), np.mean(found, axis=0).round(1).tolist()
            detail = {"ranks": ranks, "rank_0": list(map(int, found[0])), "mean": mean}
            report(what, most[0], "messages that a rank sends at most", **detail)


BENCHMARKS: dict[str, Callable[[], None]] = {f.__name__: f for f in (rank_counts, rank_plans)}


if __name__ == "__main__":
    sys.exit(count(sys.argv[1], sys.argv[2:]))
