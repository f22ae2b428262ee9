"""Keys of configurations: which of them tell runs apart, and what runs are called by them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mpifed.report.groups import NO_DIFFERENCE

NO_PANEL = (*NO_DIFFERENCE, "rounds", "algorithm.start_from")
"""Keys that part no panels: how long a run was, and from where it took what it began with."""


def differing(flat: Sequence[Mapping[str, str]], aside: Collection[str]) -> list[str]:
    """The keys in which runs differ, but for those ``aside`` and those that part no panels.

    ``flat`` are the leaves of their configurations; a key aside may name a whole section. Where
    runs name different components, an option that one of these does not have is no difference
    beside the name.
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
    """'flix_alpha=0.1, k=22'."""
    return ", ".join(
        f"{short(key)}={leaves[key]}" for key in keys if key in leaves and leaves[key] != "null"
    )


def short(key: str) -> str:
    """'algorithm.flix_alpha' is flix_alpha, and 'algorithm.name' algorithm."""
    return key.rpartition(".")[2] if not key.endswith(".name") else key.split(".")[0]


def naturally(text: str) -> list[tuple[float, str]]:
    """Sorts labels by their numbers: k=22 before k=113."""
    words = text.replace("=", " ").replace(",", " ").split()
    return [_number_first(word) for word in words]


def _number_first(word: str) -> tuple[float, str]:
    try:
        return float(word), ""
    except ValueError:
        return float("inf"), word
