"""Which components of a configuration are a user's own."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from mpifed.components.registry import Section

# Sections whose components act in a round.
ACTING = ("data", "model", "algorithm", "exchange", "compression", "attack")

# Components within them that are asked before, when the mixing matrices are made.
BEFORE = ("topology", "weights", "schedule")


def has_own_parts(configuration: Any) -> bool:
    """Return whether components that act in a round are a user's own."""
    return any(True for _ in own_sections(configuration))


def is_users(section: Any) -> bool:
    """Return whether a section names a component that is not of mpifed."""
    if not isinstance(section, Section) or ":" not in section.name:
        return False
    return section.name.partition(":")[0].partition(".")[0] != "mpifed"


def own_sections(configuration: Any) -> Iterator[tuple[str, str, Section]]:
    """Yield the components that act in a round and are a user's own."""
    for key in ACTING:
        yield from _own(key, key, getattr(configuration, key))


def _own(key: str, kind: str, section: Section) -> Iterator[tuple[str, str, Section]]:
    if is_users(section):
        yield key, kind, section
    for option, value in section.options.items():
        if option not in BEFORE and isinstance(value, Section):
            yield from _own(f"{key}.{option}", option, value)
