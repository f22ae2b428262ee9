"""Labels in words: 'FedEM, Erdős–Rényi, p = 0.1' for 'FedEM, erdos_renyi p=0.1'."""

from __future__ import annotations

NAMES = {
    "barabasi_albert": "Barabási–Albert",
    "erdos_renyi": "Erdős–Rényi",
    "fmmc": "fastest-mixing weights",
    "matcha": "MATCHA",
    "metropolis": "Metropolis weights",
    "random_regular": "random regular",
    "rand_k": "random k",
    "top_k": "top k",
    "watts_strogatz": "Watts–Strogatz",
}
"""Components as papers print them."""

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
"""Options whose names are no words."""


def in_words(label: str) -> str:
    """Return a label of a method or a data set in words.

    Parameters
    ----------
    label : str
        The label as the tables have it.

    Returns
    -------
    str
        The words.

    Examples
    --------
    >>> in_words("D-FedEM, erdos_renyi p=0.1, lr=0.3")
    'D-FedEM, Erdős–Rényi, p = 0.1, learning rate = 0.3'
    """
    return ", ".join(_part(part) for part in label.split(", "))


def key_in_words(key: str) -> str:
    """Return an option in words.

    Parameters
    ----------
    key : str
        The dotted key, or its last part.

    Examples
    --------
    >>> key_in_words("local.lr"), key_in_words("algorithm.mixture_floor")
    ('learning rate', 'mixture floor')
    """
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
