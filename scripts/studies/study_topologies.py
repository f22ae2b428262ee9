"""Runs the study of decentralised learning: topologies and schedules, corrections, heterogeneity.

    python scripts/studies/study_topologies.py [--print] [--output DIRECTORY] [key=value ...]

64 clients, three levels of heterogeneity, twelve topologies and schedules, the corrections that go
with each, three seeds: accuracy, consensus distance, bits and simulated seconds of each run.
``--print`` says which sweeps these are, without running any. Other words are overrides for all
runs. A repeated command skips finished runs and resumes interrupted ones. study_page.py makes
docs/evidence/study_topologies.md of them, and retimes them for a second network.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from typing import Any

EXPERIMENT, RUNS = "synthetic-gossip", "runs/study"

COMMON = {
    "clients": 64,
    "rounds": 400,
    "evaluation.every": 20,
    "data.n_test": 1000,
    "data.dirichlet_alpha": [0.1, 0.4, 5.0],
    "compute": {"name": "lognormal", "seconds": 0.02, "client_sigma": 0.5},
    "network": {"latency": 0.001, "bandwidth": 1e9},
    "seed": [0, 1, 2],
}

TREES = ("tree", "star")
GRAPHS = (
    *TREES,
    "ring",
    "torus",
    "hypercube",
    {"name": "erdos_renyi", "p": 0.1},
    "small_world",
)
SYMMETRIC = ("base_k", "ou_equidyn")
DIRECTED = ("one_peer_exponential", "static_exponential", "od_equidyn")


def exchanges(correction: str) -> list[dict[str, Any]]:
    """Return the topologies and schedules that a correction goes with.

    Parameters
    ----------
    correction : str
        Its name.
    """
    graphs: Sequence[Any] = TREES if correction == "relay_sum" else GRAPHS
    schedules = {
        "relay_sum": (),
        "exact_diffusion": SYMMETRIC,
    }.get(correction, (*SYMMETRIC, *DIRECTED))
    common = {"name": "gossip", "correction": correction}
    static = {**common, "weights": "metropolis_hastings"}
    return [
        *({**static, "topology": graph} for graph in graphs),
        *({**common, "schedule": schedule} for schedule in schedules),
    ]


def sweeps(output: str, overrides: Sequence[str] = ()) -> Iterator[list[str]]:
    """Yield the words of each sweep, one for each correction.

    Parameters
    ----------
    output : str
        The directory of all runs.
    overrides : sequence of str
        Further words, which replace those of the study.
    """
    taken = {word.partition("=")[0] for word in overrides}
    common = [f"{key}={json.dumps(value)}" for key, value in COMMON.items() if key not in taken]
    for correction in ("none", "tracking", "exact_diffusion", "quasi_global", "relay_sum"):
        chosen = json.dumps(exchanges(correction))
        yield [EXPERIMENT, *common, *overrides, f"exchange={chosen}", "--output", output]


def main(words: Sequence[str]) -> int:
    """Run the sweeps one after the other, or print them; return the worst exit code."""
    parser = argparse.ArgumentParser(prog="study_topologies", description=__doc__.split("\n")[0])
    parser.add_argument("--print", action="store_true", help="print the sweeps and run none")
    parser.add_argument("--output", default=RUNS, help=f"directory of the runs (default {RUNS})")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    asked = parser.parse_intermixed_args(words)
    worst = 0
    for sweep in sweeps(asked.output, asked.overrides):
        command = ["-m", "mpifed.sweep", *sweep]
        if asked.print:
            print(shlex.join(["python", *command]))
        else:
            worst = max(worst, subprocess.run([sys.executable, *command], check=False).returncode)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
