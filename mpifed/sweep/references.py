"""Overrides of a sweep that name another of its runs, so that one may begin where that ended.

``{previous}`` is the directory of the run with the value before in the last list of the sweep, all
else equal, and ``{first}`` that with the first value of the last list. The runs among which the
last list alone differs are a *chain*; its first run has none before it, and an override that holds
a placeholder is left out there.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed.config.experiment_files import parse_overrides
from mpifed.errors import InputError, closest

MARKS = {"previous": "\ue000", "first": "\ue001"}
"""What stands for a placeholder while YAML, to which braces mean something, reads the value."""

BRACES = re.compile(r"\{\s*(\w+)\s*\}")
"""A word alone in braces, which no option takes: mappings have colons."""


@dataclass(frozen=True)
class Linked:
    """An override with the placeholders ``names``; its value has ``MARKS`` in their places."""

    key: str
    value: Any
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key} has {' and '.join(f'{{{name}}}' for name in self.names)}"

    def filled(self, directories: Mapping[str, Path]) -> Any:
        """The value with the ``directories`` of these names in it."""
        return _filled(self.value, directories)


def split_linked(words: Sequence[str]) -> tuple[list[str], list[Linked]]:
    """(the overrides without placeholders, those with them); raises ``InputError``."""
    plain, linked = [], []
    for word in words:
        key, _, text = word.partition("=")
        names = tuple(dict.fromkeys(BRACES.findall(text)))
        if not names:
            plain.append(word)
            continue
        wrong = next((name for name in names if name not in MARKS), None)
        if wrong is not None:
            raise InputError(
                f"{key} has {{{wrong}}}, which no run of a sweep is; {closest(wrong, MARKS)}, in "
                "braces"
            )
        marked = BRACES.sub(lambda found: MARKS[found[1]], text)
        value = parse_overrides([f"{key}={marked}"])[key]
        made = Linked(key, value, names)
        if isinstance(value, list):
            raise InputError(f"{made} in a list, which is swept over; it must be one value")
        linked.append(made)
    return plain, linked


def _filled(value: Any, directories: Mapping[str, Path]) -> Any:
    if isinstance(value, str):
        for name, directory in directories.items():
            value = value.replace(MARKS[name], str(directory))
    elif isinstance(value, list):
        return [_filled(item, directories) for item in value]
    elif isinstance(value, dict):
        return {key: _filled(item, directories) for key, item in value.items()}
    return value
