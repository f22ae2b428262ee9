"""Benchmarks of what clients cost that do nothing, and of layers that are not trained."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from bench_figures import in_turn, report
from bench_networks import REPEATS, made, most_resident_bytes, resident_bytes

from mpifed import state as states
from mpifed.federation.clients import Clients, Draws

MEBIBYTE = 2**20
ROUNDS = 3


def frozen_body() -> None:
    """Local epochs of the CNN on two clients of 600 images, of all layers and of its head alone."""
    engine = made(
        "bench_networks:small_cnn",
        {"shape": [28, 28], "samples": 600},
        clients=2,
        **{"local.batch_size": 20, "local.momentum": 0.9},
    )
    model, solver = engine.setup.model, engine.setup.algorithm.local
    clients = Clients(engine.setup.federation, engine.shards.loaded, np.arange(2))
    row = torch.from_numpy(model.init(np.random.default_rng(0))).to(engine.shards.loaded.train.x)
    start, head = row.expand(2, 1, -1), model.mask(["10"])
    optimizer = solver.init(2, 1, row.dtype)

    def epoch(mask: torch.Tensor | None) -> Callable[[], Any]:
        return lambda: solver(start, optimizer, clients, Draws(0, 1), mask=mask)

    measured = in_turn({"all": epoch(None), "head": epoch(head), "body": epoch(~head)}, REPEATS)
    ratios = [a / b for a, b in zip(measured["head"], measured["all"], strict=True)]
    report(
        "frozen_body",
        round(statistics.median(ratios), 2),
        "of all layers, for the head alone",
        **{key: round(statistics.median(values), 3) for key, values in measured.items()},
    )


def memory_of(hosted: int) -> dict[str, float]:
    """Peak memory of rounds of 8 clients of ``hosted``, and what of it data and state are."""
    empty = resident_bytes()
    engine = made(
        "mobilenet_v2",
        {"shape": [3, 32, 32], "samples": 8, "tests": 2},
        clients=hosted,
        participation=8 / hosted,
        algorithm={"name": "fedem", "n_components": 3},
        **{"local.batch_size": 8, "local.momentum": 0.9},
    )

    def rounds() -> None:
        for _ in range(ROUNDS):
            engine.advance()
            engine.agree(False)
            assert engine.active == 8

    peak = most_resident_bytes(rounds) - empty
    splits = (engine.shards.loaded.train, engine.shards.loaded.val, engine.shards.loaded.test)
    found = states.tensors(engine.state, engine.setup.exchange.shared_is_rows)
    return {
        "peak": peak / MEBIBYTE,
        "data": sum(split.x.nbytes + split.y.nbytes for split in splits) / MEBIBYTE,
        "state": sum(tensor.nbytes for _, tensor, is_rows in found if is_rows) / MEBIBYTE,
    }


def inactive_clients() -> None:
    """Memory of FedEM with MobileNet-v2, M = 3, on a rank with 9 and 108 clients, 8 of them active.

    Each rank is a process of its own, so that none gets memory that another has given back.
    """
    found = {}
    for hosted in (8, 9, 108):
        words = [sys.executable, __file__, str(hosted)]
        said = subprocess.run(words, check=True, timeout=1800, capture_output=True, text=True)
        found[hosted] = json.loads(said.stdout)
    beside = {n: of["peak"] - of["data"] - of["state"] for n, of in found.items()}
    report(
        "inactive_clients",
        round(beside[108] - beside[9], 1),
        "MiB more for 99 inactive clients, their data and state apart",
        beside_data_and_state={n: round(value) for n, value in beside.items()},
        **{str(n): {key: round(value) for key, value in of.items()} for n, of in found.items()},
    )


BENCHMARKS: dict[str, Callable[[], None]] = {f.__name__: f for f in (frozen_body, inactive_clients)}


if __name__ == "__main__":
    print(json.dumps(memory_of(int(sys.argv[1]))))
