"""A component inside another's options: its section of a configuration, completed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpifed.components import find
from mpifed.errors import InputError
from mpifed.schema import check_options, shown


def complete(kind: str, section: Any, path: str) -> dict[str, Any]:
    """A section (a name, or a mapping with a name) with its name and all options.

    ``kind`` is the table of ``components``, ``path`` the section's place in the configuration.
    Raises ``InputError`` for what is unknown or out of range.
    """
    if isinstance(section, str):
        section = {"name": section}
    if not isinstance(section, Mapping) or "name" not in section:
        raise InputError(f"{path} is {shown(section)}; it must be a name, or a mapping with a name")
    component = find(kind, section["name"])
    checked = check_options(component, without_name(section), path)
    fill = getattr(component, "complete_options", None)
    return {"name": section["name"], **(fill(checked, 0, path) if fill else checked)}


def without_name(section: Mapping[str, Any]) -> dict[str, Any]:
    """A section without its name."""
    return {key: value for key, value in section.items() if key != "name"}
