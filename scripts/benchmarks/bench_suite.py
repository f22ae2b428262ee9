"""The benchmark suite of docs/evidence/benchmarks_page.md: one figure of every part of a run.

``scripts/bench suite > LINES`` measures all, and ``bench_page.py LINES`` draws the page.
Every figure is the median of five, in CPU seconds of one process with one thread, with the wall
seconds beside it; ``server_sum`` and ``gossip_rows`` are of ``bench_exchange``, and ``startup`` of
``bench_startup``.
"""

from __future__ import annotations

import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import bench_exchange
import bench_startup
import numpy as np
from bench_figures import report

REPEATS = 5


def measured(action: Callable[[], Any], repeats: int) -> tuple[list[float], list[float]]:
    """CPU and wall seconds of each of some calls, after one that is not counted."""
    cpu, wall = [], []
    for turn in range(repeats + 1):
        began = time.process_time(), time.perf_counter()
        action()
        if turn:
            cpu.append(time.process_time() - began[0])
            wall.append(time.perf_counter() - began[1])
    return cpu, wall


def figure(name: str, unit: str, action: Callable[[], Any], repeats: int, **detail: Any) -> None:
    """Prints the median CPU seconds of ``action``, with its wall seconds."""
    cpu, wall = measured(action, repeats)
    report(
        name,
        _short(statistics.median(cpu)),
        f"CPU s {unit}",
        wall=_short(statistics.median(wall)),
        all=[_short(value) for value in cpu],
        repeats=repeats,
        **detail,
    )


def _short(value: float) -> float:
    return float(f"{value:.4g}")


IMAGES = {"shape": [28, 28], "samples": 600}
LOCAL: dict[str, tuple[str, dict[str, Any], int, int]] = {
    "linear": ("linear", IMAGES, 60, 128),
    "mlp": ("mlp", IMAGES, 60, 128),
    "cnn": ("bench_networks:small_cnn", IMAGES, 10, 20),
    "lstm": ("lstm", {"shape": [80], "labels": 80, "samples": 64, "codes": True}, 4, 32),
}
"""Model, samples of a client, clients, and batch size."""


def local_steps(model: str, tiny: bool = False) -> None:
    """A round of FedAvg, one local epoch, of all clients in one process."""
    from bench_networks import made

    name, data, clients, batch = LOCAL[model]
    if tiny:
        data, clients = {**data, "samples": 2 * batch, "tests": 1}, 1
    engine = made(name, data, **{"local.batch_size": batch, "clients": clients})
    figure(
        f"local_{model}",
        "a round of FedAvg",
        engine.advance,
        1 if tiny else REPEATS,
        clients=clients,
        samples_each=data["samples"],
        batch=batch,
        parameters=engine.setup.model.n_parameters,
    )


def evaluation(tiny: bool = False) -> None:
    """Scores of every client on its training and test samples, a linear model."""
    from bench_networks import made, scores_of

    tests = 5 if tiny else 2000
    engine = made("linear", {**IMAGES, "tests": tests}, clients=1 if tiny else 60)
    samples = engine.setup.dataset.description
    figure(
        "evaluation",
        "for all clients' scores",
        partial(scores_of, engine),
        1 if tiny else REPEATS,
        samples=int(samples.n_train.sum() + samples.n_test.sum()),
    )


def checkpoint_file(tiny: bool = False) -> None:
    """A checkpoint written, flushed, read back and renamed."""
    import torch

    from mpifed import state
    from mpifed.checkpoint.background import Writer
    from mpifed.checkpoint.files import Meta, path_of
    from mpifed.federation.federation import Federation
    from mpifed.mpi.communicator import Alone

    clients, numbers = (2, 100) if tiny else (64, 1 << 20)
    rows, ids = torch.ones(clients, numbers), np.arange(clients)
    writer = Writer(Federation(Alone(), 0 * ids, ids < 0, ids + 1))
    folder, made = Path(tempfile.mkdtemp(prefix="mpifed-bench-")), _state(state)
    number = iter(range(1, 1000))

    def write() -> None:
        at = next(number)
        about = Meta(at, 0, 1, {}, "round\n", {}, {})
        writer.start(path_of(folder, at), about, made(rows), False, {}, 1)
        writer.finish()

    try:
        repeats, size = 1 if tiny else REPEATS, rows.numel() * 4
        figure("checkpoint_file", "to disk", write, repeats, bytes=size)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _state(state: Any) -> Any:
    """A state of clients' rows alone."""
    import dataclasses

    return dataclasses.make_dataclass("Rows", [("model", Any, state.client())], frozen=True)


def fmmc(n: int, tiny: bool = False) -> None:
    """Fastest mixing weights of a random graph, to a certified gap of 1e-3."""
    import topologies

    n = 8 if tiny else n
    graph = topologies.build_graph("erdos_renyi", n, 1234, p=min(1.0, 3 * math.log(n) / n))
    figure(
        f"fmmc_{n}",
        "to a certified gap of 1e-3",
        lambda: topologies.fmmc(graph, 1e-3),
        1 if tiny else REPEATS,
        edges=graph.number_of_edges(),
    )


def exchange(tiny: bool = False) -> None:
    """The exchange of a server and of gossip beside bare MPI, on two ranks."""
    sizes = {"numbers": 5000, "repeats": 1} if tiny else {}
    bench_exchange.server_sum(**sizes)
    bench_exchange.gossip_sum(**sizes)


def startup(tiny: bool = False) -> None:
    """Jobs of 1 to 100 ranks, from their launch to the first line of a round."""
    bench_startup.startup(**({"sizes": (1,), "repeats": 1} if tiny else {}))


PARTS: dict[str, Callable[..., None]] = {
    **{f"local_{model}": partial(local_steps, model) for model in LOCAL},
    "startup": startup,
    "exchange": exchange,
    "evaluation": evaluation,
    "checkpoint_file": checkpoint_file,
    "fmmc_graphs": lambda tiny=False: [fmmc(n, tiny) for n in ((8,) if tiny else (50, 200))],
}


def suite() -> None:
    """All parts, one after the other."""
    for part in PARTS.values():
        part()


BENCHMARKS: dict[str, Callable[[], None]] = {**PARTS, "suite": suite}
