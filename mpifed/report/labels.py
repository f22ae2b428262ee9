"""Labels of data sets and methods, from the configurations of the runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpifed.components.registry import without_module

# Algorithms as the papers print them; a user's keeps its name.
TITLES = {
    "agnostic": "AFL",
    "apfl": "APFL",
    "clustered": "Clustered FL",
    "dcgd": "DCGD",
    "diana": "DIANA",
    "ditto": "Ditto",
    "fedadam": "FedAdam",
    "fedavg": "FedAvg",
    "fedala": "FedALA",
    "fedavg_ft": "FedAvg+",
    "fedbabu": "FedBABU",
    "fedbn": "FedBN",
    "fedem": "FedEM",
    "fedgmm": "FedGMM",
    "fedmgs": "FedMGS",
    "fedmm": "FedMM",
    "fedmm_ot": "FedMM-OT",
    "fedmm_theta": "FedMM-Θ",
    "d_admm": "ADMM",
    "fedper": "FedPer",
    "fedprox": "FedProx",
    "fedrep": "FedRep",
    "fedrod": "FedRoD",
    "fedrod_hyper": "FedRoD (hyper)",
    "flix": "FLIX",
    "fomaml": "FO-MAML",
    "ifca": "IFCA",
    "kgt": "K-GT",
    "knn_per": "kNN-Per",
    "l2gd": "L2GD",
    "l2sgd": "L2SGD+",
    "local": "Local",
    "maml": "MAML",
    "mocha": "MOCHA",
    "pfedme": "pFedMe",
    "qffl": "q-FFL",
    "reptile": "Reptile",
    "sa_ssmm": "SA-SSMM",
    "scaffnew": "Scaffnew",
    "scaffold": "SCAFFOLD",
}

# Values that a label leaves out because they are the usual ones.
USUAL = {"exchange.schedule.name": "static"}
GRAPH = "exchange.topology"


def data_title(config: dict[str, Any]) -> str:
    """Return the title of a run's data set: the stem of its file, or its name and variant."""
    data = config["data"]
    if isinstance(data.get("path"), str):
        return Path(data["path"]).stem
    return f"{data['name']}-{data['variant']}" if "variant" in data else str(data["name"])


def method_title(config: dict[str, Any]) -> str:
    """Return the title of a run's method: 'D-FedEM' for gossip with fedem."""
    name = config["algorithm"]["name"]
    gossip = "D-" if config["exchange"]["name"] == "gossip" else ""
    return gossip + TITLES.get(name, without_module(name))


def leaves(tree: Any, prefix: str = "") -> dict[str, str]:
    """Return the leaves of a configuration under dotted keys, as text."""
    if isinstance(tree, dict):
        found: dict[str, str] = {}
        for key, value in tree.items():
            found |= leaves(value, f"{prefix}.{key}" if prefix else str(key))
        return found
    return {prefix: tree if isinstance(tree, str) else json.dumps(tree, default=str)}


def comparable(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose participation is a number wherever it is a fraction."""
    given = config.get("participation")
    if not isinstance(given, dict) or given.get("name") != "uniform":
        return config
    options = {f"participation.{key}": given[key] for key in given.keys() - {"name", "fraction"}}
    return config | {"participation": given.get("fraction")} | options


def distinct_labels(titles: list[str], parts: list[dict[str, str]]) -> list[str]:
    """Return titles, each with what distinguishes it from equal ones: 'FedEM, lr=0.1'."""
    labels = []
    for title, part in zip(titles, parts, strict=True):
        same = [p for t, p in zip(titles, parts, strict=True) if t == title]
        labels.append(", ".join([title, *_differences(part, same)]))
    return labels


def _differences(part: dict[str, str], same: Sequence[dict[str, str]]) -> list[str]:
    """Return what distinguishes ``part``: 'lr=0.1', and components as 'erdos_renyi p=0.05'."""
    words: list[str] = []
    named = ""  # the section whose component the last word names
    for key, value in part.items():
        section = key.rpartition(".")[0]
        is_name = key == f"{section}.name"
        alike = [p for p in same if is_name or _name(p, section) == _name(part, section)]
        # No component where others have one: what replaces it is named by another key.
        absent = value == "null" and any(f"{key}.name" in other for other in same)
        if section == named == GRAPH and _is_number(key, value):
            words[-1] += f" {key.rpartition('.')[2]}={value}"
            continue
        if absent or USUAL.get(key) == value or all(p.get(key) == value for p in alike):
            continue
        if is_name and section:
            words.append(_shown(value, [p.get(key, "") for p in same]))
            named = section
        elif section == named and words:
            words[-1] += f" {key.rpartition('.')[2]}={value}"
        else:
            words.append(f"{key.split('.', 1)[-1]}={value}")
    return words


def _is_number(key: str, value: str) -> bool:
    """Return whether an option of a graph is a number that is no seed."""
    return not key.endswith(".seed") and value.replace(".", "", 1).isdecimal()


def _shown(name: str, others: Sequence[str]) -> str:
    """Return the name of a component, without its module if no other one is called so then."""
    alike = {other for other in others if without_module(other) == without_module(name)}
    return without_module(name) if len(alike) == 1 else name


def _name(part: dict[str, str], section: str) -> str | None:
    return part.get(f"{section}.name")
