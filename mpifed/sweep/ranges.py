"""Ranges of values as words, ``local.lr=log(1e-3,1)``, in which ``--optuna`` searches."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpifed.errors import InputError, closest
from topologies.errors import excerpt

# An override whose value is a name with arguments.
FORM = re.compile(r"([^=]+)=([A-Za-z_]+)\((.*)\)")


# The forms of a range: whether its logarithm is uniform, and whether its numbers are whole.
FORMS: Mapping[str, tuple[bool, bool]] = {
    "uniform": (False, False),
    "log": (True, False),
    "int": (False, True),
    "log_int": (True, True),
}


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    @property
    def checked(self) -> tuple[Any, ...]:
        """The values whose configurations are checked before any run: both ends."""
        return self.low, self.high

    def value(self, drawn: float) -> float:
        """Return a number that was drawn with as many digits as matter, four of them."""
        if self.integer:
            return drawn
        by_ratio = self.log and self.high > 2 * self.low
        step = drawn if by_ratio else (self.high - self.low) / 10
        digits = 3 - math.floor(math.log10(step))
        return min(self.high, max(self.low, round(drawn, digits)))


def check_none_is_range(words: Sequence[str]) -> None:
    """Refuse ranges, which have no list of values."""
    for word in words:
        match = FORM.fullmatch(word)
        if match is not None and match[2] in FORMS:
            raise InputError(
                f"{match[1]} is a range, {match[2]}({match[3]}), in which mpifed sweep --optuna N "
                f"searches; other sweeps need a list of values, as {match[1]}=[0.1,1]"
            )


def split_ranges(words: Sequence[str]) -> tuple[dict[str, Range], list[str]]:
    """Divide overrides into ranges by their keys, and other words."""
    ranges: dict[str, Range] = {}
    others: list[str] = []
    for word in words:
        match = FORM.fullmatch(word)
        if match is None or match[2] == "range":
            others.append(word)
        else:
            ranges[match[1]] = range_of(*match.groups())
    return ranges, others


def range_of(key: str, form: str, arguments: str) -> Range:
    """Return the range that an override gives."""
    where = f"{key} is {excerpt(f'{form}({arguments})')}"
    if form not in FORMS:
        raise InputError(f"{where}, which is no range; {closest(form, FORMS)}, or a list [a,b]")
    log, integer = FORMS[form]
    number = int if integer else float
    try:
        low, high = map(number, arguments.split(","))
    except (ValueError, OverflowError):
        low, high = math.nan, math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        kind = "whole" if integer else "finite"
        raise InputError(
            f"{where}; it must have two {kind} numbers, the smaller first, as {form}(1,5)"
        )
    if log and low <= 0:
        raise InputError(f"{where}; both numbers must be above 0, since they have logarithms")
    return Range(low, high, log, integer)
