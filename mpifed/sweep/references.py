"""Overrides of a sweep that refer to another of its runs, so that one may begin where it ended."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed.config.experiments import parse_overrides
from mpifed.errors import InputError, closest

# Replacements of placeholders while the value is read as YAML, where braces have a meaning.
MARKS = {"previous": "\ue000", "first": "\ue001"}

# A single word in braces, which cannot be a value of an option: mappings have colons.
BRACES = re.compile(r"\{\s*(\w+)\s*\}")


@dataclass(frozen=True)
class Linked:
    """An override with placeholders."""

    key: str
    value: Any
    names: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.key} has {' and '.join(f'{{{name}}}' for name in self.names)}"

    def filled(self, directories: Mapping[str, Path]) -> Any:
        """Return the value with directories in place of placeholders."""
        return _filled(self.value, directories)


def split_linked(words: Sequence[str]) -> tuple[list[str], list[Linked]]:
    """Divide overrides into those without and those with placeholders."""
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
