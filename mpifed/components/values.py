"""Values of options, as YAML gives them and as a stored configuration holds them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

LARGEST = 2**63 - 1
"""The largest whole number of an option: arrays of counts are int64."""


def storable(value: Any) -> Any:
    """Return ``value`` if it reads back as stored; YAML also has dates, sets and bytes.

    Raises
    ------
    TypeError, ValueError
        If it does not.

    Examples
    --------
    >>> storable({"hidden": (64, 32)})
    {'hidden': [64, 32]}
    """
    if isinstance(value, str):
        return _text(value)
    if value is None or isinstance(value, (bool, int, float)):
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError
        return value
    if isinstance(value, (list, tuple)):
        return [storable(item) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: storable(item) for key, item in value.items()}
    raise TypeError


def _text(value: str) -> str:
    """Return ``value`` if a file can hold it: UTF-8 has no lone surrogates."""
    value.encode()
    return value


def plain_value(value: Any, kind: type) -> Any:
    """Return ``value`` as None, a float, an int, a bool or a string, where it means the same.

    Raises
    ------
    TypeError, ValueError, OverflowError
        If it is something else.

    Examples
    --------
    >>> plain_value("1e-3", float), plain_value(2.0, int)
    (0.001, 2)
    """
    if kind is type(None):
        if value is None:
            return None
        raise TypeError
    if kind is float:
        # YAML 1.1 reads "1e-3" as text; a user who types it means the number.
        number = float(value) if isinstance(value, (int, float, str)) else None
        if number is None or isinstance(value, bool) or not math.isfinite(number):
            raise TypeError
        if isinstance(value, str) and (not value.isascii() or "_" in value):
            raise ValueError  # a number to Python alone
        return number
    if kind is int:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value != int(value):
            raise TypeError
        if abs(value) > LARGEST:
            raise OverflowError
        return int(value)
    if isinstance(value, kind):
        return _text(value) if isinstance(value, str) else value
    raise TypeError
