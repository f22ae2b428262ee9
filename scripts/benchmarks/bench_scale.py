"""Benchmarks of many clients of whom few are active: time, and memory of those who are not.

Every run is a process of its own, under ``mpirun`` where ``BENCH_RANKS`` asks for several ranks.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_figures import report

REPEATS = 5
ACTIVE = 1000

LINEAR = ("synthetic-fedem", "algorithm=fedavg", "data.n_test=10", "--quiet")
FEW_SAMPLES = ("data.dimension=10", "storage.samples=50")


def measured(*words: str, ranks: int = 1) -> dict[str, Any]:
    """CPU and wall seconds of a run, its largest rank's peak memory and its digest."""
    front = [os.environ.get("MPIRUN", "mpirun"), "-n", str(ranks)] if ranks > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "run"
        command = [*front, sys.executable, "-m", "mpifed.run", *words, f"--output={output}"]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        subprocess.run(command, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        summary = json.loads((output / "summary.json").read_text())
    return {
        "cpu_seconds": after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        "wall_seconds": time.perf_counter() - began,
        "peak_bytes": summary["peak_memory_bytes"],
        "state_digest": summary["state_digest"],
    }


def ranks_asked_for() -> int:
    """The ranks of the benchmarks but ``memory_a_client``."""
    return int(os.environ.get("BENCH_RANKS", "1"))


def sampled(clients: int, active: int, rounds: int) -> list[str]:
    """``active`` of the clients in each round, and in each evaluation: the first and the last."""
    share = repr(active / clients)
    return [
        *(f"clients={clients}", f"participation={share}", f"evaluation.sample={share}"),
        *(f"rounds={rounds}", f"evaluation.every={rounds}"),
    ]


def many_clients(clients: int = 10_000, repeats: int = REPEATS) -> None:
    """Four rounds of the linear problem with 10,000 clients, a tenth of them active."""
    ranks = ranks_asked_for()
    words = [*LINEAR, *sampled(clients, clients // 10, 4)]
    found = [measured(*words, ranks=ranks) for _ in range(repeats)]
    middle = {name: statistics.median(each[name] for each in found) for name in FIGURES}
    report("many_clients", round(middle["cpu_seconds"], 2), "CPU s", ranks=ranks, **middle)


FIGURES = ("cpu_seconds", "wall_seconds", "peak_bytes")


def sampled_clients(several: tuple[int, ...] = (100_000, 1_000_000)) -> None:
    """Four rounds of FedAvg with 1 % of 100,000 and of 1,000,000 clients, 10 inputs a sample."""
    for clients in several:
        scored = f"evaluation.sample={ACTIVE / clients!r}"
        words = [*LINEAR, *FEW_SAMPLES, *sampled(clients, clients // 100, 4), scored]
        found = measured(*words, ranks=ranks_asked_for())
        seconds = round(found["cpu_seconds"], 1)
        report("sampled_clients", seconds, "CPU s", clients=clients, **found)


def memory_a_client(few: int = 100_000, many: int = 1_100_000, repeats: int = 1) -> None:
    """Peak bytes of a process for each client that is not active, its state included."""

    def peak(clients: int) -> float:
        words = [*LINEAR, *FEW_SAMPLES, *sampled(clients, min(ACTIVE, few), 2)]
        return statistics.median(measured(*words)["peak_bytes"] for _ in range(repeats))

    small, large = peak(few), peak(many)
    slope = (large - small) / (many - few)
    detail = {"clients": [few, many], "peak_bytes": [small, large]}
    report("memory_a_client", round(slope, 1), "bytes", **detail)


def million_clients(clients: int = 1_000_000) -> None:
    """SCAFFOLD with 1 % of 1,000,000 clients a round, their variates included."""
    ranks = ranks_asked_for()
    own = ["algorithm=scaffold", "local.momentum=0"]
    asked = [*sampled(clients, clients // 100, 3), f"evaluation.sample={1000 / clients!r}"]
    found = measured(*LINEAR, *own, *FEW_SAMPLES, *asked, ranks=ranks)
    report("million_clients", round(found["cpu_seconds"], 1), "CPU s", ranks=ranks, **found)


BENCHMARKS: dict[str, Callable[[], None]] = {
    f.__name__: f for f in (many_clients, sampled_clients, memory_a_client, million_clients)
}
