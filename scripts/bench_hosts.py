"""What sums and gossip between hosts send, and the simulated clock beside a real network.

    python scripts/bench_hosts.py bytes      bytes on the wire and seconds of a round
    python scripts/bench_hosts.py clock      simulated and wall seconds of 20 rounds

Needs root and makes hosts of this machine (``scripts/hosts``). The model is the CNN of Reddi et al.
2021, 1,206,590 numbers; what is reported of rounds is the difference of two runs.
"""

from __future__ import annotations

import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests" / "hosts"))
from rig import command, link, run  # noqa: E402

NUMBERS = 1_206_590
MODEL = 4 * NUMBERS

# Bytes of a TCP segment's data over those of its frame.
PAYLOAD = 1448 / 1514

GOSSIP = ("exchange=gossip", "exchange.weights=metropolis_hastings")
KINDS = {
    "server": (),
    **{graph: (*GOSSIP, f"exchange.topology={graph}") for graph in ("ring", "star", "complete")},
}


def words_of(kind: str, clients: int, folder: Path) -> tuple[str, ...]:
    """The words of a run in which a client takes one short step a round."""
    path = folder / f"{clients}.npz"
    if not path.exists():
        draws = np.random.default_rng(0)
        n = 20 * clients
        x = draws.integers(0, 255, (n, 28, 28), dtype=np.uint8)
        y = np.concatenate([np.arange(62), draws.integers(0, 62, n)])[:n]
        np.savez(path, x=x, y=y, client=np.arange(n) % clients)
    return (
        *("digits-fedem", "data.name=npz", f"data.path={path}", "data.client=client"),
        *("model=cnn", "algorithm=fedavg", f"clients={clients}", "local.steps=1"),
        *("local.batch_size=4", "checkpoint.every=1000", "evaluation.every=1000", "--quiet"),
        *KINDS[kind],
    )


def wire(hosts: int) -> int:
    """Bytes that the hosts have sent."""
    return sum(int(link(f"node{i + 1}", "bytes").split()[1]) for i in range(hosts))


def measured(hosts: int, ranks: int, words: tuple[str, ...], rounds: int) -> dict[str, float]:
    """What a run of some rounds took and sent."""
    with tempfile.TemporaryDirectory() as folder:
        before, output = wire(hosts), Path(folder) / "run"
        done = run(command(hosts, ranks, *words, f"rounds={rounds}", "--output", output), 900)
        if done.returncode:
            sys.exit(done.stdout + done.stderr)
        summary = json.loads((output / "summary.json").read_text())
        last = list(csv.DictReader((output / "metrics.csv").open()))[-1]
        return {
            "wire": wire(hosts) - before,
            "mpi": summary["mpi_bytes_sent"],
            "wall": float(last["seconds"]),
            "simulated": float(last.get("simulated_seconds") or 0),
            "local": summary["seconds"]["local"],
            "exchange": summary["seconds"]["exchange"],
        }


def rounds_of(hosts: int, ranks: int, words: tuple[str, ...], rounds: int) -> dict[str, float]:
    """What ``rounds`` rounds took and sent, without start and evaluation."""
    few, many = (measured(hosts, ranks, words, each) for each in (1, 1 + rounds))
    return {name: many[name] - few[name] for name in few}


def rate(text: str, hosts: int) -> None:
    """Shape the links of some hosts."""
    subprocess.run([HERE / "hosts" / "start", str(hosts), text], check=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        hosts, ranks, r, kind, n = sys.argv[1:6]
        rate(r, int(hosts))
        w = words_of(kind, int(n), Path(folder))
        print(kind, rounds_of(int(hosts), int(ranks), (*w, *sys.argv[6:]), 3), flush=True)
