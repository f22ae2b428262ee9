"""Configuration keys: those in which runs differ, and the labels of runs made from them."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mpifed.report.groups import NO_DIFFERENCE

# Keys that never separate panels: also the length of a run and the run it started from.
NO_PANEL = (*NO_DIFFERENCE, "rounds", "algorithm.start_from")


def differing(flat: Sequence[Mapping[str, str]], aside: Collection[str]) -> list[str]:
    """Return the keys in which runs differ."""
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
    """Return the values of some keys as a label."""
    return ", ".join(
        f"{short(key)}={leaves[key]}" for key in keys if key in leaves and leaves[key] != "null"
    )


def short(key: str) -> str:
    """Return the last part of a dotted key; the section for the name of a component."""
    return key.rpartition(".")[2] if not key.endswith(".name") else key.split(".")[0]


def naturally(text: str) -> list[tuple[float, str]]:
    """Return a sort key that orders labels by their numbers."""
    words = text.replace("=", " ").replace(",", " ").split()
    return [_number_first(word) for word in words]


def _number_first(word: str) -> tuple[float, str]:
    try:
        return float(word), ""
    except ValueError:
        return float("inf"), word
