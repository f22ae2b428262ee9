"""Labels of data sets and methods, from the configurations of the runs.

Labels in words: 'FedEM, Erdős–Rényi, p = 0.1' for 'FedEM, erdos_renyi p=0.1'.
"""

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


# Components as papers print them.
NAMES = {
    "barabasi_albert": "Barabási–Albert",
    "base_k": "base k",
    "best_constant": "best constant weights",
    "clipped_gossip": "clipped gossip",
    "clique_averaging": "clique averaging",
    "d2": "D²",
    "d_cliques": "D-Cliques",
    "d_equistatic": "D-EquiStatic",
    "decentlam": "DecentLaM",
    "delta_mbst": "δ-MBST",
    "edge_list": "edge list",
    "equitopo": "EquiTopo",
    "erdos_renyi": "Erdős–Rényi",
    "exact_diffusion": "exact diffusion",
    "fmmc": "fastest-mixing weights",
    "gaussian_mixture": "Gaussian mixture",
    "geometric_median": "geometric median",
    "hyper_hypercube": "hyper-hypercube",
    "k_peer_exponential": "k-peer exponential",
    "karate": "karate club",
    "krum": "Krum",
    "label_flip": "label flipping",
    "matcha": "MATCHA",
    "max_degree": "maximum-degree weights",
    "metropolis": "Metropolis weights",
    "metropolis_hastings": "Metropolis–Hastings weights",
    "mobilenet_v2": "MobileNetV2",
    "model_replacement": "model replacement",
    "mst": "minimum spanning tree",
    "multi_step": "multi-step",
    "null_cascade": "null cascade",
    "od_equidyn": "OD-EquiDyn",
    "one_peer_exponential": "one-peer exponential",
    "ou_equidyn": "OU-EquiDyn",
    "push_sum": "push-sum",
    "quantise": "quantisation",
    "quasi_global": "quasi-global momentum",
    "rand_k": "random k",
    "random_matching": "random matching",
    "random_regular": "random regular",
    "random_walk": "random walk",
    "relay_sum": "RelaySum",
    "remark_one": "Remark 1",
    "resnet18": "ResNet-18",
    "resnet34": "ResNet-34",
    "sign_flip": "sign flipping",
    "simple_base_k": "simple base k",
    "small_world": "small world",
    "static_exponential": "static exponential",
    "stl_fw": "STL-FW",
    "tags_file": "tags",
    "top_k": "top k",
    "tracking": "gradient tracking",
    "trimmed_mean": "trimmed mean",
    "u_equistatic": "U-EquiStatic",
    "watts_strogatz": "Watts–Strogatz",
}

# Options whose names are no words.
KEYS = {
    "batch_size": "batch size",
    "dirichlet_alpha": "Dirichlet α",
    "dtype": "numbers",
    "epochs": "local epochs",
    "flix_alpha": "α",
    "lr": "learning rate",
    "lr_schedule": "learning rates",
    "n_components": "components",
    "weight_decay": "weight decay",
}


def in_words(label: str) -> str:
    """Return a label of a method or a data set in words."""
    return ", ".join(_part(part) for part in label.split(", "))


def key_in_words(key: str) -> str:
    """Return an option in words."""
    section, _, last = key.rpartition(".")
    if last == "name" and section:
        return section.rpartition(".")[2].replace("_", " ")
    return KEYS.get(last, last.replace("_", " "))


def _part(part: str) -> str:
    """One part between commas: the name of a component with its options, or an option."""
    first, *options = part.split(" ")
    if options and not all("=" in option for option in options):
        return part  # a title of several words
    name = [NAMES.get(first, first) if "=" not in first else _option(first)]
    return ", ".join([*name, *map(_option, options)])


def _option(text: str) -> str:
    key, _, value = text.partition("=")
    return f"{key_in_words(key)} = {NAMES.get(value, value)}"
