"""Configurations of earlier runs: keys that have ended, options that they lack, what differs."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from mpifed.components.registry import with_defaults
from mpifed.config.options import EvaluationOptions, StorageOptions
from mpifed.local.options import LocalOptions
from topologies.errors import excerpt

# The version of the arithmetic, without which the rounding cannot be repeated. 1 were sums of
# integers; runs of then do not mention it. 2 had minibatches that were padded to 32 samples.
ARITHMETIC = 3

# Keys of configurations that a run writes or wrote, and that are ignored where they are read.
UNREAD = ("arithmetic", "placement_costs")

# Keys that have ended, and why: they are read with a remark.
RETIRED = {
    "data": {"kmeans_solver": "mpifed itself makes clusters of equal size"},
    "exchange": {
        "reduction": "ranks add along one tree",
        "transport": "ranks send each other the rows that they mix",
    },
    "storage": {
        "directory": "states of clients are in memory",
        "state": "states of clients are in memory, of which more ranks on more nodes have more",
    },
}


def arithmetic_of(stored: Mapping[str, Any]) -> list[list[int]]:
    """Return the first round of each version of the arithmetic, and it, of a stored run."""
    held = stored.get("arithmetic", 1)
    return held if isinstance(held, list) else [[1, held]]


def differences(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> list[str]:
    """Return the dotted keys in which two configurations differ, with both values."""
    lines = []
    for key in sorted({*one, *other}):
        a, b, where = one.get(key), other.get(key), f"{path}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            lines += differences(a, b, f"{where}.")
        elif a != b:
            lines.append(f"{where}: {excerpt(a)} in the run, {excerpt(b)} now")
    return lines


def without_retired(section: str, options: Any) -> Any:
    """Return a section without keys that have ended; a user's own component may have them."""
    if not isinstance(options, Mapping) or ":" in str(options.get("name")):
        return options
    ended = RETIRED.get(section, {})
    return {key: value for key, value in options.items() if key not in ended}


def completed(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored configuration with defaults for keys of some sections that it may lack."""
    configuration = {**stored, "data": with_defaults("data", stored.get("data"))}
    configuration["compression"] = with_defaults("compression", stored.get("compression"))
    configuration["exchange"] = without_retired("exchange", stored.get("exchange"))
    sections: dict[str, Any] = {
        "evaluation": EvaluationOptions(),
        "storage": StorageOptions(),
        "local": LocalOptions(),
    }
    for name, options in sections.items():
        section = stored.get(name)
        configuration[name] = dataclasses.asdict(options) | (
            section if isinstance(section, dict) else {}
        )
    return configuration
