"""Configuration keys: those in which runs differ, and the labels of runs made from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mpifed.report.groups import NO_DIFFERENCE

NO_PANEL = (*NO_DIFFERENCE, "rounds", "algorithm.start_from")
"""Keys that never separate panels: also the length of a run and the run it started from."""


def differing(flat: Sequence[Mapping[str, str]], aside: Collection[str]) -> list[str]:
    """Return the keys in which runs differ.

    Keys that never separate panels (``NO_PANEL``) are left out. Where runs name different
    components, an option that one of the components does not have is not listed beside the name.

    Parameters
    ----------
    flat : Sequence[Mapping[str, str]]
        The leaves of each run's configuration.
    aside : Collection[str]
        Keys or sections to leave out.

    Returns
    -------
    list of str
        The dotted keys, in the order of the configurations.

    Examples
    --------
    >>> differing([{"rounds": "5", "local.lr": "0.1"}, {"rounds": "9", "local.lr": "1"}], [])
    ['local.lr']
    """
    found = []
    for key in dict.fromkeys(key for leaves in flat for key in leaves):
        if key.startswith(NO_PANEL) or any(f"{key}.".startswith(f"{one}.") for one in aside):
            continue
        name = f"{key.rpartition('.')[0]}.name"
        named_apart = key != name and len({leaves.get(name) for leaves in flat}) > 1
        among = [leaves for leaves in flat if key in leaves] if named_apart else flat
        if len({leaves.get(key) for leaves in among}) > 1:
            found.append(key)
    return found


def label(leaves: Mapping[str, str], keys: Sequence[str]) -> str:
    """Return the values of some keys as a label.

    Parameters
    ----------
    leaves : Mapping[str, str]
        The leaves of a configuration.
    keys : Sequence[str]
        The keys; those that are missing or null are left out.

    Returns
    -------
    str
        Such as 'flix_alpha=0.1, k=22'.

    Examples
    --------
    >>> label({"local.lr": "0.1", "clients": "null"}, ["local.lr", "clients"])
    'lr=0.1'
    """
    return ", ".join(
        f"{short(key)}={leaves[key]}" for key in keys if key in leaves and leaves[key] != "null"
    )


def short(key: str) -> str:
    """Return the last part of a dotted key; the section for the name of a component.

    Parameters
    ----------
    key : str
        The dotted key.

    Returns
    -------
    str
        The short key.

    Examples
    --------
    >>> short("algorithm.flix_alpha"), short("algorithm.name")
    ('flix_alpha', 'algorithm')
    """
    return key.rpartition(".")[2] if not key.endswith(".name") else key.split(".")[0]


def naturally(text: str) -> list[tuple[float, str]]:
    """Return a sort key that orders labels by their numbers.

    Parameters
    ----------
    text : str
        A label.

    Returns
    -------
    list of tuple
        The sort key.

    Examples
    --------
    >>> sorted(["k=113", "k=22"], key=naturally)
    ['k=22', 'k=113']
    """
    words = text.replace("=", " ").replace(",", " ").split()
    return [_number_first(word) for word in words]


def _number_first(word: str) -> tuple[float, str]:
    try:
        return float(word), ""
    except ValueError:
        return float("inf"), word
