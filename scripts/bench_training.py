"""Benchmarks of training: speed, memory and scaling on the 300 clients of the released benchmark.

``scripts/bench [NAME ...]`` runs them. Seconds are CPU seconds of one process with one thread,
median of five, but where ``detail`` says otherwise; wall times depend on what else the machine
does.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bench_aggregators
import bench_answers
import bench_asynchrony
import bench_checkpoint
import bench_clients
import bench_clustering
import bench_corrections
import bench_exchange
import bench_fedmm
import bench_flix
import bench_gossip
import bench_interruption
import bench_methods
import bench_models
import bench_networks
import bench_scale
import bench_startup
import bench_suite
import bench_surrogates
import bench_topologies
import bench_tracking
import bench_transport
from bench_figures import cpu_seconds, report, run, scores_of
from bench_figures import engine as engine_of

import mpifed

REPEATS = 5
TRAINING = {"local.lr": 0.1, "local.momentum": 0.9, "local.weight_decay": 5e-4}


def engine(**overrides: Any) -> Any:
    """The released benchmark, ready for its first round, in this process."""
    return engine_of("synthetic-released", **{**TRAINING, **overrides})


def one_round(name: str, **overrides: Any) -> None:
    """CPU seconds of a round of the released benchmark under ``overrides``."""
    made = engine(**{**overrides, "data.n_test": 50})
    measured = cpu_seconds(made.advance, REPEATS, inner=10)
    training = made.clock.seconds
    share = training["exchange"] / (training["exchange"] + training["local"])
    report(
        name,
        round(statistics.median(measured), 4),
        "CPU s a round",
        all=[round(m, 4) for m in measured],
        exchange_share=round(share, 4),
        clients=made.setup.federation.n_clients,
        training_samples=made.setup.federation.n_train_total,
    )


def fedem_round() -> None:
    """A FedEM round, three components, through a server."""
    one_round("fedem_round")


def fedavg_round() -> None:
    """A FedAvg round."""
    one_round("fedavg_round", algorithm="fedavg")


def dfedem_round() -> None:
    """A D-FedEM round over an Erdős–Rényi graph with p = 0.5."""
    one_round("dfedem_round", exchange="gossip")


def scoring() -> None:
    """Scoring every client on its training and its 5000 test samples."""
    made = engine()
    measured = cpu_seconds(partial(scores_of, made), REPEATS)
    report(
        "scoring",
        round(statistics.median(measured), 3),
        "CPU s",
        all=[round(m, 3) for m in measured],
        test_samples=int(made.setup.dataset.description.n_test.sum()),
    )


def run_command(*words: str, ranks: int = 0) -> tuple[dict[str, Any], float, Any]:
    """A run as a user starts it: its summary, wall seconds, and the children's resource usage."""
    folder = Path(tempfile.mkdtemp(prefix="mpifed-bench-"))
    front = [os.environ.get("MPIRUN") or "mpirun", "-n", str(ranks)] if ranks else []
    command = [*front, sys.executable, "-m", "mpifed.run", *words, "--quiet", "--output"]
    began = time.monotonic()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    try:
        subprocess.run([*command, str(folder / "run")], check=True, timeout=1800)
        summary = json.loads((folder / "run" / "summary.json").read_text())
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return summary, time.monotonic() - began, used


def peak_memory() -> None:
    """The whole run in one process, 1.5 million test samples included; generated beforehand."""
    run_command("synthetic-released", "rounds=1")
    summary, _, _ = run_command("synthetic-released", "rounds=10")
    report(
        "peak_memory",
        round(summary["peak_memory_bytes"] / 2**30, 3),
        "GiB",
        summary=summary["seconds"],
    )


def overhead() -> None:
    """Everything outside local computation and evaluation, as a share of the rounds' time."""
    made = engine(**{"data.n_test": 50})
    made.advance()
    folder = Path(tempfile.mkdtemp(prefix="mpifed-bench-"))
    from mpifed.training.run_directory import COLUMNS, Recorder

    recorder = Recorder(folder / "run", COLUMNS, [], "", made.writer.finish, True)
    clock = made.clock.seconds
    before = dict(clock)
    began = time.perf_counter()
    scored = 0.0
    for _ in range(50):
        made.advance()
        made.agree(False)
        if made.round % 10 == 0:
            made.evaluate(recorder, None)
            results_began = time.perf_counter()
            scores_of(made)
            scored += time.perf_counter() - results_began
    total = time.perf_counter() - began - scored
    shutil.rmtree(folder, ignore_errors=True)
    local = clock["local"] - before["local"]
    share = (total - local - scored) / (total - scored)
    report(
        "overhead",
        round(share, 4),
        "share of a round outside local computation and evaluation",
        local_seconds=round(local / 50, 4),
        exchange_seconds=round((clock["exchange"] - before["exchange"]) / 50, 4),
        seconds=round((total - scored) / 50, 4),
    )


def two_ranks() -> None:
    """Rounds a second of two ranks over those of one, alternating so that both meet the same
    noise.
    """
    rates: dict[int, list[float]] = {1: [], 2: []}
    run_command("synthetic-released", "rounds=1", "data.n_test=50")
    for _ in range(REPEATS):
        for ranks in (1, 2):
            words = ("synthetic-released", "rounds=60", "evaluation.every=60", "data.n_test=50")
            summary, _, _ = run_command(*words, ranks=ranks)
            seconds = summary["seconds"]
            rates[ranks].append(60 / (seconds["local"] + seconds["exchange"]))
    ratios = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
    report(
        "two_ranks",
        round(statistics.median(ratios), 2),
        "times the rounds a second of one rank",
        all=[round(r, 2) for r in ratios],
        rounds_a_second={n: round(statistics.median(r), 1) for n, r in rates.items()},
        cores=os.cpu_count(),
    )


def hundred_ranks() -> None:
    """The default experiment with one rank for each of its hundred clients."""
    summary, wall, used = run_command("rounds=5", ranks=100)
    report(
        "hundred_ranks",
        round(wall, 1),
        "wall s of mpirun -n 100 python -m mpifed.run rounds=5",
        cpu_seconds=round(used, 1),
        peak_memory_of_a_rank_mib=round(summary["peak_memory_bytes"] / 2**20),
        cores=os.cpu_count(),
    )


BENCHMARKS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        fedem_round,
        fedavg_round,
        dfedem_round,
        scoring,
        overhead,
        peak_memory,
        two_ranks,
        hundred_ranks,
    )
}
for part in (
    bench_topologies,
    bench_surrogates,
    bench_clustering,
    bench_transport,
    bench_gossip,
    bench_aggregators,
    bench_answers,
    bench_asynchrony,
    bench_corrections,
    bench_flix,
    bench_fedmm,
    bench_checkpoint,
    bench_interruption,
    bench_networks,
    bench_scale,
    bench_clients,
    bench_models,
    bench_methods,
    bench_exchange,
    bench_suite,
    bench_startup,
    bench_tracking,
):
    BENCHMARKS |= part.BENCHMARKS


if __name__ == "__main__":
    assert mpifed.__version__
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.exit(run(BENCHMARKS, sys.argv[1:]))
