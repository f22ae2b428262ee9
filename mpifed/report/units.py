"""Numbers of bits with a unit."""

from __future__ import annotations

import math

PREFIXES = ("", "k", "M", "G", "T", "P")


def bits(value: float) -> str:
    """Return a number of bits with its unit."""
    if math.isnan(value):
        return "–"
    unit, prefix = bit_prefix(value)
    return f"{value / unit:.3g} {prefix}bit"


def bit_prefix(value: float) -> tuple[float, str]:
    """Return the unit in which ``value`` is a number from 1 to 999, and its prefix."""
    power = int(math.log10(value) // 3) if value >= 1 else 0
    power = min(power, len(PREFIXES) - 1)
    return 1000.0**power, PREFIXES[power]
