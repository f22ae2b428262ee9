"""What sums and gossip between hosts send, and the simulated clock beside a real network.

    python scripts/benchmarks/bench_hosts.py bytes      bytes on the wire and seconds of a round
    python scripts/benchmarks/bench_hosts.py clock      simulated and wall seconds of 20 rounds

Needs root and makes hosts of this machine (``scripts/hosts``). The model is the CNN of Reddi et al.
2021, 1,206,590 numbers; what is reported of rounds is the difference of two runs.
"""

from __future__ import annotations

import csv
import itertools
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import networkx as nx
import numpy as np
from bench_figures import report

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
from rig import command, link, run  # noqa: E402

CLIENTS = 4

# Bytes of a model.
MODEL = 4 * 1_206_590

RATES = {"100mbit": 1e8, "1gbit": 1e9}

# Mbit/s of a link, both ways, where messages take much longer than computations.
RATE = 20

# Bytes of a TCP segment's data over those of its frame.
PAYLOAD = 1448 / 1514

GOSSIP = ("exchange=gossip", "exchange.weights=metropolis_hastings")
KINDS = {
    "server": (),
    **{graph: (*GOSSIP, f"exchange.topology={graph}") for graph in ("ring", "star", "complete")},
}


def words_of(kind: str, folder: Path) -> tuple[str, ...]:
    """The words of a run on random pictures, in which a client takes one short step a round."""
    path = folder / "pictures.npz"
    if not path.exists():
        draws, n = np.random.default_rng(0), 20 * CLIENTS
        x = draws.integers(0, 255, (n, 28, 28), dtype=np.uint8)
        np.savez(path, x=x, y=np.arange(n) % 62, client=np.arange(n) % CLIENTS)
    return (
        *("digits-fedem", "data.name=npz", f"data.path={path}", "data.client=client"),
        *("model=cnn", "algorithm=fedavg", f"clients={CLIENTS}", "local.steps=1", "local.lr=1e-4"),
        *("local.batch_size=4", "checkpoint.every=1000", "evaluation.every=1000", "--quiet"),
        *KINDS[kind],
    )


def network(kind: str, rate: float) -> tuple[str, ...]:
    """The words by which the simulated federation has links of ``rate`` Mbit/s."""
    speed = f"{rate * PAYLOAD * 1e6:g}"
    words = ("compute.name=measured", f"network.upload={speed}", f"network.download={speed}")
    return (*words, "network.server=all_reduce") if kind == "server" else words


def wire(hosts: int) -> int:
    """Bytes that the hosts have sent."""
    return sum(int(link(f"node{i + 1}", "bytes").split()[1]) for i in range(hosts))


def measured(
    hosts: int, ranks: int, words: tuple[str, ...], rate: str, rounds: int
) -> dict[str, float]:
    """What a run of some rounds took and sent."""
    subprocess.run([ROOT / "scripts" / "hosts" / "start", str(hosts), rate], check=True)
    with tempfile.TemporaryDirectory() as folder:
        before, output = wire(hosts), Path(folder) / "run"
        done = run(command(hosts, ranks, *words, f"rounds={rounds}", "--output", output), 900)
        if done.returncode:
            raise RuntimeError(done.stdout + done.stderr)
        summary = json.loads((output / "summary.json").read_text())
        with (output / "metrics.csv").open() as file:
            last = list(csv.DictReader(file))[-1]
        return {
            "wire": wire(hosts) - before,
            "mpi": summary["mpi_bytes_sent"],
            "wall": float(last["seconds"]),
            "simulated": float(last.get("simulated_seconds") or 0),
            "local": summary["seconds"]["local"],
            "evaluation": summary["seconds"]["evaluation"],
        }


def rounds_of(
    hosts: int, ranks: int, words: tuple[str, ...], rate: str, rounds: int
) -> dict[str, float]:
    """What ``rounds`` rounds took and sent, without start and evaluation."""
    few, many = (measured(hosts, ranks, words, rate, each) for each in (1, 1 + rounds))
    return {name: many[name] - few[name] for name in few}


def least(kind: str, hosts: int) -> tuple[float, float]:
    """Rows that must leave hosts in a round, in all and of the host that sends or gets most."""
    if kind == "server":
        return 2 * (hosts - 1), 2 * (hosts - 1) / hosts
    node = np.arange(CLIENTS) * hosts // CLIENTS
    graph = {"ring": nx.cycle_graph, "star": nx.star_graph, "complete": nx.complete_graph}[kind]
    edges = [
        (a, b) for edge in graph(CLIENTS - (kind == "star")).edges for a, b in (edge, edge[::-1])
    ]
    crossing = {(a, node[b]) for a, b in edges if node[a] != node[b]}
    going = np.bincount([node[a] for a, _ in crossing], minlength=hosts)
    coming = np.bincount([to for _, to in crossing], minlength=hosts)
    return len(crossing), max(*going, *coming)


def sent(folder: Path) -> None:
    """Bytes on the wire and seconds of a round, beside the least that these can be."""
    for (rate, speed), kind in itertools.product(RATES.items(), ("server", "ring", "complete")):
        for hosts, ranks in ((1, 4), (2, 2), (2, 4), (4, 4)):
            found = rounds_of(hosts, ranks, words_of(kind, folder), rate, 3)
            rows, most = least(kind, hosts)
            report(
                f"{kind}_{rate}_{hosts}_hosts_{ranks}_ranks",
                round(found["wall"] / 3, 3),
                "seconds of a round",
                bytes_over_bandwidth=round(8 * MODEL * most / speed, 3),
                wire=round(found["wire"] / 3),
                wire_over_least=round(found["wire"] / 3 / (rows * MODEL), 3) if rows else None,
                wire_over_mpi_bytes_sent=round(found["wire"] / found["mpi"], 3),
                local=round(found["local"] / 3, 3),
            )


def clock(folder: Path, *kinds: str) -> None:
    """Simulated over wall seconds of 20 rounds of four hosts with a client each."""
    for kind in kinds or KINDS:
        words = (*words_of(kind, folder), *network(kind, RATE))
        found = measured(4, 4, words, f"{RATE}mbit", 20)
        found["wall"] -= found["evaluation"]
        report(
            f"clock_{kind}",
            round(found["simulated"] / found["wall"], 3),
            "simulated over wall seconds of 20 rounds",
            **{name: round(value, 2) for name, value in found.items()},
        )


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        {"bytes": sent, "clock": clock}[sys.argv[1]](Path(name), *sys.argv[2:])
