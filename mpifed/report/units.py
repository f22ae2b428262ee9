"""Numbers of bits with a unit."""

from __future__ import annotations

import math

PREFIXES = ("", "k", "M", "G", "T", "P")


def bits(value: float) -> str:
    """Return a number of bits with its unit.

    Parameters
    ----------
    value : float
        The number of bits; NaN gives a dash.

    Returns
    -------
    str
        Such as '1.45 Gbit'.

    Examples
    --------
    >>> bits(1.45e9)
    '1.45 Gbit'
    """
    if math.isnan(value):
        return "–"
    unit, prefix = bit_prefix(value)
    return f"{value / unit:.3g} {prefix}bit"


def bit_prefix(value: float) -> tuple[float, str]:
    """Return the unit in which ``value`` is a number from 1 to 999, and its prefix.

    Parameters
    ----------
    value : float
        A number of bits.

    Returns
    -------
    tuple of float and str
        Such as (1e9, 'G').

    Examples
    --------
    >>> bit_prefix(2.5e6)
    (1000000.0, 'M')
    """
    power = int(math.log10(value) // 3) if value >= 1 else 0
    power = min(power, len(PREFIXES) - 1)
    return 1000.0**power, PREFIXES[power]
