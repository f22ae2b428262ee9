"""The runs of study_topologies.py by level of heterogeneity, graph and correction."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from study_topologies import COMMON, exchanges

from mpifed.report.groups import Group, last_differences, leaves
from mpifed.report.runs import Run, read_run, run_directories
from mpifed.training.retiming import retime, write

SLOW = {
    **{"network.latency": 0.05, "network.bandwidth": None},
    **{"network.upload": 1e6, "network.download": 1e6},
}

CLOCK = "simulated_seconds"
LEVELS = {0.1: "very unlike (α = 0.1)", 0.4: "unlike (α = 0.4)", 5.0: "alike (α = 5)"}
CORRECTIONS = {
    "none": "plain gossip",
    "tracking": "gradient tracking",
    "exact_diffusion": "exact diffusion",
    "quasi_global": "quasi-global momentum",
    "relay_sum": "RelaySum",
}
GRAPHS = {
    "star": "star",
    "tree": "tree",
    "ring": "ring",
    "torus": "torus",
    "small_world": "small world",
    "hypercube": "hypercube",
    "erdos_renyi": "Erdős–Rényi, p = 0.1",
    "static_exponential": "exponential, static",
    "one_peer_exponential": "exponential, one peer",
    "base_k": "base 2",
    "ou_equidyn": "OU-EquiDyn",
    "od_equidyn": "OD-EquiDyn",
}
"""Topologies and schedules in the order of the tables, in words."""

Key = tuple[float, str, str]  # level, graph, correction


@dataclass(frozen=True)
class Study:
    """The runs by level of heterogeneity, graph and correction, seed by seed.

    Attributes
    ----------
    fast, slow : dict of Key to Group
        Finished runs on the two networks.
    diverged : dict of Key to int
        How many runs ended because numbers were no longer finite.
    wanted : list of Key
        All cells, of ``seeds`` runs each.
    """

    fast: dict[Key, Group]
    slow: dict[Key, Group]
    diverged: dict[Key, int]
    wanted: list[Key]

    def differences(self, key: Key, column: str) -> np.ndarray:
        """Return the differences from plain gossip on the same graph, one for each seed."""
        plain = (key[0], key[1], "none")
        if key not in self.fast or plain not in self.fast:
            return np.zeros(0)
        return last_differences(self.fast[key], self.fast[plain], column)


def seeds() -> int:
    """Return the number of seeds of each cell."""
    return len(COMMON["seed"])


def key_of(config: dict[str, Any]) -> Key:
    """Return the cell of a run.

    Parameters
    ----------
    config : dict
        Its configuration.
    """
    said = leaves(config)
    graph = said.get("exchange.topology.name") or said["exchange.schedule.name"]
    correction = said.get("exchange.correction.name", "none")
    return float(said["data.dirichlet_alpha"]), graph, correction


def cells() -> list[Key]:
    """Return all cells of the study, in the order of the tables."""
    found = []
    for correction in CORRECTIONS:
        for exchange in exchanges(correction):
            given = exchange.get("topology", exchange.get("schedule"))
            graph = given["name"] if isinstance(given, dict) else str(given)
            found += [(float(level), graph, correction) for level in COMMON["data.dirichlet_alpha"]]
    order = list(GRAPHS), list(CORRECTIONS)
    return sorted(found, key=lambda key: (key[0], order[0].index(key[1]), order[1].index(key[2])))


def read_study(places: Path, slow: Path) -> Study:
    """Return the runs that are finished, retimed where they were not yet.

    Parameters
    ----------
    places : Path
        The directory of the runs.
    slow : Path
        That of the same runs on the other network.
    """
    runs: dict[Key, list[tuple[Run, Run]]] = {}
    diverged: dict[Key, int] = {}
    for place in run_directories(places):
        if not (place / "DONE").exists():
            if (place / "summary.json").exists() and read_run(place).diverged:
                key = key_of(read_run(place).config)
                diverged[key] = diverged.get(key, 0) + 1
            continue
        run, other = read_run(place), slow / place.relative_to(places)
        if not (other / "DONE").exists():
            write(retime(place, SLOW), other)
        runs.setdefault(key_of(run.config), []).append((run, read_run(other)))
    fast, slowed = (
        {key: _group(key, [pair[which] for pair in pairs]) for key, pairs in runs.items()}
        for which in (0, 1)
    )
    return Study(fast, slowed, diverged, cells())


def _group(key: Key, runs: list[Run]) -> Group:
    ordered = sorted(runs, key=lambda run: int(run.seed))
    return Group(LEVELS[key[0]], f"{GRAPHS[key[1]]}, {CORRECTIONS[key[2]]}", tuple(ordered))
