"""Labels in words: 'FedEM, Erdős–Rényi, p = 0.1' for 'FedEM, erdos_renyi p=0.1'."""

from __future__ import annotations

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
