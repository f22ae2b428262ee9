"""The performance model beside measured rounds, and where many clients saturate.

``scripts/bench model`` compares CPU seconds of a round, all ranks together, on 1 to 16 ranks of
this computer with what ``--plan`` foretells. Ranks sleep while they wait; what it takes to look for
messages is foretold for the wall seconds that were measured, which other work lengthens.
``python scripts/bench_model.py scaling`` writes docs/performance_model_scaling.md and its picture:
forecasts for 1,000 to 100,000 clients.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench_figures import report

RANKS = (1, 2, 4, 8, 16)
ROUNDS = 25
CASES: dict[str, dict[str, Any]] = {
    "server": {"clients": 300},
    "gossip": {"clients": 300, "exchange": "gossip", "exchange.topology.p": 0.05},
    "perceptron": {"clients": 32, "model": "mlp", "data.dimension": 500, "algorithm": "fedavg"},
}
DOCS = Path(__file__).parents[1] / "docs"
CLUSTER = {"latency": 2e-6, "overhead": 1e-6, "bandwidth": 1.2e10, "cores": 64}
"""A node of 64 cores and a network of 100 Gbit/s."""

CLIENTS = (1000, 10_000, 100_000)
SCALE = (64, 256, 1024, 4096)


def configuration(**overrides: Any) -> Any:
    """A shipped experiment with small test sets, resolved."""
    from mpifed.config.configuration import apply_overrides, read_experiment, resolve

    chosen = {"data.n_test": 20, "local.momentum": 0.9, "device": "cpu", **overrides}
    return resolve(apply_overrides(read_experiment("synthetic-fedem"), chosen))


def on_ranks(ranks: int, words: list[str]) -> Any:
    """What this file prints when started with ``words`` on so many ranks."""
    front = [os.environ.get("MPIRUN") or "mpirun", "-n", str(ranks)]
    command = [*front, sys.executable, str(Path(__file__).resolve()), *words]
    done = subprocess.run(command, check=True, timeout=900, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout.strip().splitlines()[-1])


def measured(case: str, communicator: Any, rounds: int = ROUNDS) -> dict[str, float] | None:
    """CPU seconds of all ranks in the quickest round and its wall seconds, where ranks sleep while
    they wait; and the median wall seconds, where they wait as usual. None but on rank 0.
    """
    import torch

    from mpifed.training.build import make
    from mpifed.training.clock import Clock
    from mpifed.training.engine import Engine
    from mpifed.training.samples import samples_of

    torch.set_num_threads(1)
    made = configuration(**CASES[case])
    setup = make(made, communicator, made.rounds)
    engine = Engine(setup, samples_of(setup), Clock())
    engine.prepare()
    cpu, wall, own = [], [], []
    for turn in range(2 * rounds + 2):
        asleep = turn > rounds
        if asleep:
            communicator._sleeps = True
        began = time.process_time(), time.perf_counter()
        engine.advance()
        engine.agree(False)
        spent = (time.process_time() - began[0], time.perf_counter() - began[1])
        every = communicator.gather_object(spent) or [spent]
        if turn in (0, rounds + 1):
            continue
        latest = max(one[1] for one in every)
        if asleep:
            cpu.append(sum(one[0] for one in every))
            wall.append(latest)
        else:
            own.append(latest)
    if communicator.rank:
        return None
    best = cpu.index(min(cpu))
    return {"cpu": cpu[best], "wall": wall[best], "own_wall": statistics.median(own)}


def model() -> None:
    """Foretold and measured CPU seconds of a round on 1 to 16 ranks."""
    import torch

    from mpifed.training.forecast import forecast
    from mpifed.training.network import Network

    torch.set_num_threads(1)
    network = Network(**on_ranks(2, ["ping_pong"]))
    for case, overrides in CASES.items():
        made, rows = configuration(**overrides), []
        for ranks in RANKS:
            found = on_ranks(ranks, ["measure", case])
            one = forecast(made, ranks, ranks, os.cpu_count() or 1, network)
            rows.append(
                {
                    "ranks": ranks,
                    "measured": round(found["cpu"], 4),
                    "foretold": round(one.cpu(found["wall"]), 4),
                    "error": round(one.cpu(found["wall"]) / found["cpu"] - 1, 3),
                    "wall": round(found["own_wall"], 4),
                    "foretold_wall": round(one.total, 4),
                    "wall_error": round(one.total / found["own_wall"] - 1, 3),
                }
            )
        report(
            f"model_{case}",
            max(abs(row["error"]) for row in rows),
            "largest error of CPU seconds a round, all ranks",
            rows=rows,
            network=vars(network),
        )


def scaling(folder: Path = DOCS) -> None:
    """Writes the table and the picture of forecasts for many clients."""
    import torch

    from mpifed.training.forecast import forecast
    from mpifed.training.network import Network

    torch.set_num_threads(1)
    network = Network(*(CLUSTER[key] for key in ("latency", "overhead", "bandwidth")))
    ways = {
        "server": {"data.n_test": 1},
        "gossip": {"data.n_test": 1, "exchange": "gossip", "exchange.topology": "ring"},
    }
    ways["gossip"]["exchange.weights"] = "metropolis_hastings"
    found: dict[tuple[str, int], list[Any]] = {}
    for way, overrides in ways.items():
        for clients in CLIENTS:
            made = configuration(**overrides, clients=clients)
            found[way, clients] = [
                forecast(made, ranks, 64, 64, network) for ranks in SCALE if ranks <= clients
            ]
    lines = ["| exchange | clients | ranks | compute, s | network, s | round, s | efficiency |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for (way, clients), rows in found.items():
        for one in rows:
            first = rows[0]
            efficiency = first.total * first.ranks / (one.total * one.ranks)
            lines.append(
                f"| {way} | {clients:,} | {one.ranks:,} | {one.compute:.3g} | "
                f"{one.network:.3g} | {one.total:.3g} | {efficiency:.2f} |"
            )
    (folder / "performance_model_scaling.md").write_text("\n".join(lines) + "\n")
    draw(found, folder / "performance_model.png")


def draw(found: dict[tuple[str, int], list[Any]], path: Path) -> None:
    """Draws seconds of a round over ranks."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(7, 4.2), layout="constrained")
    for (way, clients), rows in found.items():
        style = "-" if way == "server" else "--"
        seconds = [one.total for one in rows]
        axes.loglog(
            [one.ranks for one in rows], seconds, style + "o", label=f"{way}, {clients:,} clients"
        )
    axes.set_xlabel("ranks")
    axes.set_ylabel("seconds a round")
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120, metadata={"Software": None})
    pyplot.close(figure)


def main(words: list[str]) -> None:
    """Runs one part of this file on the ranks of a job, or ``scaling`` alone."""
    import mpifed

    assert mpifed.__version__
    os.environ["OMP_NUM_THREADS"] = "1"
    if words[0] == "scaling":
        scaling()
        return
    from mpifed.mpi.communicator import world
    from mpifed.training.network import ping_pong

    communicator = world()
    if words[0] == "ping_pong":
        found: Any = vars(ping_pong(communicator))
    else:
        found = measured(words[1], communicator)
    if communicator.rank == 0:
        print(json.dumps(found), flush=True)


BENCHMARKS: dict[str, Callable[[], None]] = {"model": model}


if __name__ == "__main__":
    main(sys.argv[1:])
