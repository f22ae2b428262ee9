"""Benchmarks of training: speed, memory and scaling on the 300 clients of the released benchmark.

``scripts/bench [NAME ...]`` runs them. Seconds are CPU seconds of one process with one thread,
median of five, but where ``detail`` says otherwise; wall times depend on what else the machine
does.
"""

from __future__ import annotations

import json
import multiprocessing
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
import bench_jax
import bench_methods
import bench_models
import bench_networks
import bench_peers
import bench_ranks
import bench_scale
import bench_startup
import bench_suite
import bench_surrogates
import bench_topologies
import bench_tracking
import bench_transport
import numpy as np
from bench_figures import cpu_seconds, in_turn, report, run, scores_of
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


def numpy_rounds() -> None:
    """Rounds of FedAvg and FedEM beside plain numpy programs that draw the same minibatches.

    ``one_gradient`` is a gradient of every client on all of its samples, where they lie.
    """
    engines = {
        name: engine(**{"algorithm": name, "data.n_test": 50}) for name in ("fedavg", "fedem")
    }
    train = engines["fedavg"].shards.loaded.train
    ends = list(zip(train.offsets, train.offsets[1:], strict=False))
    x = [np.pad(train.x[a:b].numpy(), ((0, 0), (0, 1)), constant_values=1) for a, b in ends]
    y = [train.y[a:b].numpy().astype(np.float32) for a, b in ends]
    share = (np.array([len(part) for part in y]) / len(train.y)).astype(np.float32)
    draws, size = np.random.default_rng(0), x[0].shape[1]
    one, three = np.zeros(size, np.float32), draws.standard_normal((3, size), np.float32)
    mixed = np.full((len(x), 3), 1 / 3, np.float32)

    def gradient(w: np.ndarray, x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return x.T @ ((1 / (1 + np.exp(-(x @ w))) - y) * weights) / np.float32(len(x))

    def epoch(w: np.ndarray, client: int, weights: np.ndarray) -> np.ndarray:
        w, v, order = w.copy(), np.zeros_like(w), draws.permutation(len(y[client]))
        for part in np.split(order, range(128, len(order), 128)):
            found = gradient(w, x[client][part], y[client][part], weights[part])
            v = np.float32(0.9) * v + found + np.float32(5e-4) * w
            w -= np.float32(0.1) * v
        return w

    def fedavg() -> None:
        one[:] = sum(
            share[t] * epoch(one, t, np.ones(len(y[t]), np.float32)) for t in range(len(x))
        )

    def fedem() -> None:
        found = np.zeros_like(three)
        for t in range(len(x)):
            z = x[t] @ three.T
            losses = np.logaddexp(0, z) - y[t][:, None] * z
            q = np.exp(np.log(mixed[t]) - losses)
            q /= q.sum(1, keepdims=True)
            mixed[t] = q.mean(0)
            for m in range(3):
                found[m] += share[t] * epoch(three[m], t, q[:, m])
        three[:] = found

    def one_gradient() -> None:
        for t in range(len(x)):
            gradient(one, x[t], y[t], np.ones(len(y[t]), np.float32))

    actions = {name: made.advance for name, made in engines.items()}
    programs = {"numpy_fedavg": fedavg, "numpy_fedem": fedem, "one_gradient": one_gradient}
    measured = in_turn({**actions, **programs}, 2 * REPEATS, inner=3)
    middle = {key: round(statistics.median(values), 4) for key, values in measured.items()}
    for name, beside in (
        ("fedavg", "numpy_fedavg"),
        ("fedem", "numpy_fedem"),
        ("fedavg", "one_gradient"),
    ):
        ratios = [a / b for a, b in zip(measured[name], measured[beside], strict=True)]
        report(f"{name}_of_{beside}", round(statistics.median(ratios), 3), "times", **middle)


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
    from mpifed.training.evaluation import COLUMNS
    from mpifed.training.run_directory import Recorder

    recorder = Recorder(folder / "run", {}, "")
    recorder.begin(COLUMNS, [], made.writer.finish, True)
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


# Runs on the released data, and one of gossip with one step a round on 32 clients.
ON_TWO = {
    "fedem": ("synthetic-released", "data.n_test=50"),
    "fedavg": ("synthetic-released", "data.n_test=50", "algorithm=fedavg"),
    "dsgd": (
        *("digits-fedem", "data.name=npz", "data.client=client", "clients=32", "algorithm=fedavg"),
        *("model=mlp", "model.hidden=[512,512]", "local.steps=1", "local.batch_size=32"),
        *("exchange=gossip", "exchange.topology=exponential", "local.lr=1e-5"),
    ),
}


def two_ranks() -> None:
    """Rounds a second of two ranks over those of one, alternating so that both meet the same
    noise.
    """
    with tempfile.TemporaryDirectory() as folder:
        path, clients = Path(folder) / "pictures.npz", np.repeat(np.arange(32), 80)
        x = np.random.default_rng(0).integers(0, 255, (len(clients), 28, 28), dtype=np.uint8)
        np.savez(path, x=x, y=np.arange(len(clients)) % 10, client=clients)
        for name, words in ON_TWO.items():
            more = [f"data.path={path}"] if name == "dsgd" else []
            one_and_two(name, *words, *more, "rounds=60", "evaluation.every=60")


def one_and_two(name: str, *words: str) -> None:
    """Rounds a second of two ranks over those of one."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    for _ in range(REPEATS):
        for ranks in (1, 2):
            seconds = run_command(*words, ranks=ranks)[0]["seconds"]
            rates[ranks].append(60 / (seconds["local"] + seconds["exchange"]))
    ratios = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
    report(
        f"two_ranks_{name}",
        round(statistics.median(ratios), 2),
        "times the rounds a second of one rank",
        all=[round(r, 2) for r in ratios],
        rounds_a_second={n: round(statistics.median(r), 1) for n, r in rates.items()},
        cores=os.cpu_count(),
    )


COPIED = 1 << 26
"""Bytes of an array that no cache holds."""


def copies(seconds: float) -> float:
    """GB a second that this process reads and writes by copying one array to another."""
    source, target = (np.ones(COPIED // 8) for _ in range(2))
    count, began = 0, time.perf_counter()
    while (passed := time.perf_counter() - began) < seconds:
        np.copyto(target, source)
        count += 1
    return 2e-9 * COPIED * count / passed


def memory_bandwidth() -> None:
    """GB a second that two processes copy over those of one, alternating."""
    rates: dict[int, list[float]] = {1: [], 2: []}
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        for _ in range(REPEATS):
            for processes in rates:
                rates[processes].append(sum(pool.map(copies, [0.5] * processes, chunksize=1)))
    ratios = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
    report(
        "memory_bandwidth",
        round(statistics.median(ratios), 2),
        "times the GB a second that one process copies",
        all=[round(ratio, 2) for ratio in ratios],
        gb_a_second={n: round(statistics.median(each), 1) for n, each in rates.items()},
        cores=os.cpu_count(),
    )


def busy_seconds() -> float:
    """CPU seconds of this machine so far: nobody waits for forked ranks, whose usage is lost."""
    user, nice, system = map(int, Path("/proc/stat").read_text().split()[1:4])
    return (user + nice + system) / os.sysconf("SC_CLK_TCK")


def hundred_ranks() -> None:
    """The default experiment with one rank for each of its hundred clients; CPU of a round is the
    difference of two runs.
    """
    used = []
    for rounds in (65, 5):
        began = busy_seconds()
        words = (f"rounds={rounds}", "evaluation.every=100")
        summary, wall, _ = run_command(*words, ranks=100)
        used.append(busy_seconds() - began)
    report(
        "hundred_ranks",
        round(wall, 1),
        "wall s of mpirun -n 100 python -m mpifed.run rounds=5",
        cpu_seconds=round(used[1], 1),
        cpu_milliseconds_of_a_round=round(1e3 * (used[0] - used[1]) / 60),
        peak_memory_of_a_rank_mib=round(summary["peak_memory_bytes"] / 2**20),
        cores=os.cpu_count(),
    )


BENCHMARKS: dict[str, Callable[[], None]] = {
    f.__name__: f
    for f in (
        fedem_round,
        fedavg_round,
        dfedem_round,
        numpy_rounds,
        scoring,
        overhead,
        peak_memory,
        two_ranks,
        memory_bandwidth,
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
    bench_peers,
    bench_jax,
    bench_scale,
    bench_clients,
    bench_models,
    bench_methods,
    bench_exchange,
    bench_suite,
    bench_startup,
    bench_tracking,
    bench_ranks,
):
    BENCHMARKS |= part.BENCHMARKS


if __name__ == "__main__":
    assert mpifed.__version__
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.exit(run(BENCHMARKS, sys.argv[1:]))
