"""Which other components have an option that one was given in vain."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpifed.components.schema import options_of
from mpifed.components.tables import TABLES
from mpifed.errors import InputError

Find = Callable[[str, str], Any]

# Components that are named, at most.
MOST = 3


def words_of(module: str) -> set[str]:
    """Return the words in the text of a module of this package; none where it cannot be read."""
    path = Path(__file__).parents[2].joinpath(*module.split(".")).with_suffix(".py")
    try:
        text = path.read_text(encoding="utf-8")
    except OSError:  # packed, or compiled
        return set()
    return set(re.findall(r"\w+", text))


def said_elsewhere(kind: str, section: str, option: str, find: Find) -> str:
    """Return what to set so that an option is known, for a message; empty where nothing has it."""
    owners = [
        name
        for name, path in TABLES.get(kind, {}).items()
        if option in words_of(path.partition(":")[0]) and _has(find, kind, name, option)
    ]
    if not 0 < len(owners) <= MOST:
        return ""
    if len(owners) == 1:
        return f"set {section}={owners[0]}, which has it; "
    every = [f"{section}={name}" for name in owners]
    return f"{', '.join(every[:-1])} and {every[-1]} have it; "


def _has(find: Find, kind: str, name: str, option: str) -> bool:
    try:
        return option in options_of(find(kind, name))
    except (InputError, ImportError):  # of an extra that is not installed
        return False
