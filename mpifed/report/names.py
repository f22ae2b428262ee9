"""Names of data sets, methods, components and options as papers print them, and how lines look."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed.components.registry import without_module
from mpifed.components.tables import METHODS
from mpifed.errors import printable

TITLES = {name: title for name, (_, title, _) in METHODS.items()}
COLOUR_NUMBERS = {name: number for name, (*_, number) in METHODS.items() if number is not None}

# Components whose names are more than their words.
NAMES = {
    "barabasi_albert": "Barabási–Albert",
    "best_constant": "best constant weights",
    "d2": "D²",
    "d_cliques": "D-Cliques",
    "d_equistatic": "D-EquiStatic",
    "decentlam": "DecentLaM",
    "nids": "NIDS",
    "auc": "AUC",
    "aug_dgm": "Aug-DGM",
    "push_pull": "Push-Pull",
    "heavy_ball": "ABm",
    "beer": "BEER",
    "motef": "MoTEF",
    "edm": "EDM",
    "led": "LED",
    "lt_admm": "LT-ADMM",
    "by_size": "weights by size",
    "push_diging": "Push-DIGing",
    "dgd": "DGD",
    "delta_mbst": "δ-MBST",
    "equitopo": "EquiTopo",
    "erdos_renyi": "Erdős–Rényi",
    "f1": "F1",
    "fmmc": "fastest-mixing weights",
    "gasloc": "GASLoC",
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
    "noloco": "NoLoCo",
    "od_equidyn": "OD-EquiDyn",
    "one_peer_exponential": "one-peer exponential",
    "ou_equidyn": "OU-EquiDyn",
    "push_sum": "push-sum",
    "quantise": "quantisation",
    "quasi_global": "quasi-global momentum",
    "rand_k": "random k",
    "relay_sum": "RelaySum",
    "remark_one": "Remark 1",
    "vgg11": "VGG-11",
    "resnet20": "ResNet-20",
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


# Okabe and Ito's colours, which colour-blind readers can distinguish, without their yellow, which
# is too faint for a line, and two of Tol's. Dashes and markers distinguish what shares a colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00",
           "#56B4E9", "#000000", "#882255", "#7A7A1F")  # fmt: skip
# Lengths of strokes and gaps in units of the line's width; none for a solid line.
DASHES: tuple[tuple[float, ...], ...] = (
    (),
    (5, 2),
    (1, 1.5),
    (5, 2, 1, 2),
    (8, 2, 1, 2, 1, 2),
    (2, 4),
)
# Shapes, as matplotlib names them.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Look:
    """How a line is drawn."""

    colour: str
    strokes: tuple[float, ...] = ()
    marker: str = "o"

    @property
    def dashes(self) -> Any:
        """The line style for matplotlib."""
        return (0, self.strokes) if self.strokes else "-"


def look(index: int) -> Look:
    """Return the look of the ``index``-th line, where lines are no methods."""
    return _look(index % len(COLOURS), index // len(COLOURS), index)


def _look(colour: int, dashes: int, marker: int) -> Look:
    return Look(COLOURS[colour], DASHES[dashes % len(DASHES)], MARKERS[marker % len(MARKERS)])


def looks_of_methods(methods: Sequence[tuple[str, str]]) -> dict[str, Look]:
    """Return how each method is drawn, given the names of algorithms with the methods' labels.

    Up to nine algorithms have nine colours, and methods of one algorithm differ in dashes; of one
    algorithm alone they differ in colours first. Two look alike only beyond 54 of them.
    """
    first = _first_colours({name for name, _ in methods})
    order = {label: index for index, (_, label) in enumerate(methods)}
    taken: Counter[tuple[int, int]] = Counter()
    look_of = {}
    # The label without settings before those with some.
    for name, label in sorted(methods, key=lambda one: "," in one[1]):
        by_dash = [(colour, d) for d in range(len(DASHES)) for colour in _from(first[name])]
        same_colour = [] if len(first) == 1 else [(first[name], d) for d in range(len(DASHES))]
        pair = min(same_colour + by_dash, key=taken.__getitem__)
        taken[pair] += 1
        look_of[label] = _look(*pair, order[label])
    return {label: look_of[label] for label in order}


def _from(colour: int) -> list[int]:
    """Return all colours in their order, beginning with this one."""
    return [(colour + k) % len(COLOURS) for k in range(len(COLOURS))]


def _first_colours(names: set[str]) -> dict[str, int]:
    """The colour of each algorithm: its own, else the next one that is free, while there are."""
    numbers = {name: 90 + zlib.crc32(name.encode()) % 9 for name in names}
    numbers |= {name: number for name, number in COLOUR_NUMBERS.items() if name in names}
    order = sorted(names, key=lambda name: (numbers[name], name))
    owners: dict[int, str] = {}
    for name in order:
        owners.setdefault(numbers[name] % len(COLOURS), name)
    first: dict[str, int] = {}
    for name in sorted(order, key=lambda name: name not in owners.values()):
        colours = _from(numbers[name])
        free = (colour for colour in colours if colour not in first.values())
        first[name] = next(free, colours[0])
    return first


def score_title(name: str) -> str:
    """Return the title of a score of ``evaluation.metrics``: 'AUC' for auc."""
    title = NAMES.get(name, name.replace("_", " "))
    return title[:1].upper() + title[1:]


def data_title(config: dict[str, Any]) -> str:
    """Return the title of a run's data set: the stem of its file, or its name and variant."""
    data = config["data"]
    if isinstance(data.get("path"), str):
        return printable(Path(data["path"]).stem)
    named = f"{data['name']}-{data['variant']}" if "variant" in data else str(data["name"])
    return printable(named)


def method_title(config: dict[str, Any]) -> str:
    """Return the title of a run's method: 'D-FedEM' for gossip with fedem."""
    gossip = "D-" if config["exchange"]["name"] == "gossip" else ""
    name = config["algorithm"]["name"]
    return gossip + TITLES.get(name, printable(without_module(name)))


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
