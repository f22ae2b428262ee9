"""Axes of a drawing: where a value is, and which values are labelled."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """Values from ``low`` to ``high`` on a line from ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False
    whole: bool = False

    def at(self, values: np.ndarray) -> np.ndarray:
        """Return where values are."""
        low, high = self.low, self.high
        if self.log:
            low, high = math.log10(low), math.log10(high)
            values = np.log10(np.maximum(values, self.low))
        share = np.clip((values - low) / (high - low), 0, 1)
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int) -> list[tuple[float, str]]:
        """Return about ``count`` values to label, with their labels."""
        return _log_ticks(self.low, self.high, count) if self.log else _ticks(self, count)


def around(low: float, high: float, log: bool = False, margin: float = 0.04) -> tuple[float, float]:
    """Return limits of an axis around values from ``low`` to ``high``."""
    if log:
        if high <= low * 1.0001:
            return low / 2, high * 2
        factor = (high / low) ** margin
        return low / factor, high * factor
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        half = abs(low) * 0.01 if abs(low) > 50 else 0.5
        return low - half, high + half
    extra = (high - low) * margin
    return low - extra, high + extra


def _ticks(scale: Scale, count: int) -> list[tuple[float, str]]:
    step = _step((scale.high - scale.low) / count)
    step = max(step, 1.0) if scale.whole else step
    first, last = math.ceil(scale.low / step - 1e-9), math.floor(scale.high / step + 1e-9)
    digits = max(0, -math.floor(math.log10(step) + 1e-9))
    values = [k * step for k in range(first, last + 1)]
    if digits > 4 or max((abs(value) for value in values), default=0) >= 1e7:
        return [(value, f"{value:.3g}") for value in values]
    shown = [f"{value + 0:,.{digits}f}".replace(",", "\u202f") for value in values]
    return [(value, label.replace("-", "−")) for value, label in zip(values, shown, strict=True)]


def _step(rough: float) -> float:
    """The least of 1, 2, 5 times a power of ten that is at least ``rough``."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * k for k in (1, 2, 5, 10) if power * k >= rough * (1 - 1e-9))


def _log_ticks(low: float, high: float, count: int) -> list[tuple[float, str]]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    every = max(1, round((last - first) / count))
    factors = (1,) if last - first > 3 else (1, 2, 5)
    values = [f * 10.0**k for k in range(first, last + 1, every) for f in factors]
    found = [value for value in values if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    return [(value, _power(value) if len(factors) == 1 else _plain(value)) for value in found]


def _power(value: float) -> str:
    return "10" + str(round(math.log10(value))).translate(SUPERSCRIPT)


def _plain(value: float) -> str:
    if 1e-3 <= value < 1e5:
        return f"{value:g}"
    exponent = math.floor(math.log10(value) + 1e-9)
    front = round(value / 10.0**exponent)
    return ("" if front == 1 else f"{front}·") + _power(10.0**exponent)
