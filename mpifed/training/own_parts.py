"""Which components of a configuration are a user's own."""

from __future__ import annotations

from typing import Any

from mpifed.components.registry import Section

ACTING = ("data", "model", "algorithm", "exchange", "compression", "attack")
"""Sections whose components act in a round."""

BEFORE = ("topology", "weights", "schedule")
"""Components within them that are asked before, when the mixing matrices are made."""


def has_own_parts(configuration: Any) -> bool:
    """Return whether components that act in a round are a user's own.

    Parameters
    ----------
    configuration : Configuration
        The configuration.
    """
    return any(_has_own(getattr(configuration, key)) for key in ACTING)


def is_users(section: Any) -> bool:
    """Return whether a section names a component that is not of mpifed."""
    if not isinstance(section, Section) or ":" not in section.name:
        return False
    return section.name.partition(":")[0].partition(".")[0] != "mpifed"


def _has_own(section: Section) -> bool:
    within = (option for key, option in section.options.items() if key not in BEFORE)
    return is_users(section) or any(_has_own(each) for each in within if isinstance(each, Section))
