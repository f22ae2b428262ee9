"""Names of data sets, methods, components and options as papers print them, and their colours."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

from mpifed.components.registry import without_module
from mpifed.components.tables import METHODS

TITLES = {name: title for name, (_, title, _) in METHODS.items()}
PLACES = {name: place for name, (*_, place) in METHODS.items() if place is not None}

# Components whose names are more than their words.
NAMES = {
    "barabasi_albert": "Barabási–Albert",
    "best_constant": "best constant weights",
    "d2": "D²",
    "d_cliques": "D-Cliques",
    "d_equistatic": "D-EquiStatic",
    "decentlam": "DecentLaM",
    "delta_mbst": "δ-MBST",
    "equitopo": "EquiTopo",
    "erdos_renyi": "Erdős–Rényi",
    "fmmc": "fastest-mixing weights",
    "gaussian_mixture": "Gaussian mixture",
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
    "mst": "minimum spanning tree",
    "multi_step": "multi-step",
    "od_equidyn": "OD-EquiDyn",
    "one_peer_exponential": "one-peer exponential",
    "ou_equidyn": "OU-EquiDyn",
    "push_sum": "push-sum",
    "quantise": "quantisation",
    "quasi_global": "quasi-global momentum",
    "rand_k": "random k",
    "relay_sum": "RelaySum",
    "remark_one": "Remark 1",
    "resnet18": "ResNet-18",
    "resnet34": "ResNet-34",
    "sign_flip": "sign flipping",
    "stl_fw": "STL-FW",
    "tags_file": "tags",
    "tracking": "gradient tracking",
    "u_equistatic": "U-EquiStatic",
    "watts_strogatz": "Watts–Strogatz",
}

# Options whose names are no words.
KEYS = {
    "dirichlet_alpha": "Dirichlet α",
    "dtype": "numbers",
    "epochs": "local epochs",
    "flix_alpha": "α",
    "lr": "learning rate",
    "lr_schedule": "learning rates",
    "n_components": "components",
}


def title_of(name: str) -> str:
    """Return the title of an algorithm; a user's keeps its name."""
    return TITLES.get(name, without_module(name))


def colour_of(name: str) -> int:
    """Return the number of an algorithm's colour; lower numbers come first where two share one."""
    return PLACES.get(name, 90 + zlib.crc32(name.encode()) % 9)


def data_title(config: dict[str, Any]) -> str:
    """Return the title of a run's data set: the stem of its file, or its name and variant."""
    data = config["data"]
    if isinstance(data.get("path"), str):
        return Path(data["path"]).stem
    return f"{data['name']}-{data['variant']}" if "variant" in data else str(data["name"])


def method_title(config: dict[str, Any]) -> str:
    """Return the title of a run's method: 'D-FedEM' for gossip with fedem."""
    gossip = "D-" if config["exchange"]["name"] == "gossip" else ""
    return gossip + title_of(config["algorithm"]["name"])


def in_words(label: str) -> str:
    """Return a label in words: 'FedEM, Erdős–Rényi, p = 0.1' for 'FedEM, erdos_renyi p=0.1'."""
    title, *settings = label.split(", ")
    return ", ".join([NAMES.get(title, title), *map(_setting, settings)])


def key_in_words(key: str) -> str:
    """Return an option in words; the section for the name of a component."""
    section, _, last = key.rpartition(".")
    if last == "name" and section:
        return section.rpartition(".")[2].replace("_", " ")
    return KEYS.get(last, last.replace("_", " "))


def _setting(text: str) -> str:
    """The name of a component with its options, or an option, in words."""
    first, *options = text.split(" ")
    if not all("=" in option for option in options):
        return text  # a value of several words
    name = NAMES.get(first, first.replace("_", " ")) if "=" not in first else _option(first)
    return ", ".join([name, *map(_option, options)])


def _option(text: str) -> str:
    key, _, value = text.partition("=")
    return f"{key_in_words(key)} = {NAMES.get(value, value)}"
