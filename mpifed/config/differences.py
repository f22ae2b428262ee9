"""In which keys two configurations differ."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpifed.components.schema import shown


def differences(one: Mapping[str, Any], other: Mapping[str, Any], path: str = "") -> list[str]:
    """Return the dotted keys in which two configurations differ, with both values."""
    found = []
    for key in sorted({*one, *other}):
        a, b, where = one.get(key), other.get(key), f"{path}{key}"
        if isinstance(a, Mapping) and isinstance(b, Mapping):
            found += differences(a, b, f"{where}.")
        elif a != b:
            found.append(f"{where}: {shown(a)} in the run, {shown(b)} now")
    return found
