"""Means over seeds with Student's intervals, and paired differences with Student's test."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
# What ``±`` is in every table, for those that have one.
MEANING = "± is half the 95 % interval of Student's t over seeds."


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval."""

    mean: float
    half_width: float
    count: int
    p_value: float

    def text(self, form: str, width: str | None = None) -> str:
        """Return the mean, and behind ``±`` half its interval if there is one."""
        if math.isnan(self.mean):
            return "–"
        if math.isnan(self.half_width):
            return format(self.mean, form)
        return f"{self.mean:{form}} ± {self.half_width:{width or form.removeprefix('+')}}"


def estimate(values: np.ndarray, level: float = LEVEL) -> Estimate:
    """Return mean and interval of some values, by Student's t distribution."""
    from scipy.special import stdtr, stdtrit

    values = values[np.isfinite(values)]
    count = len(values)
    if count < 2:
        return Estimate(float(values[0]) if count else math.nan, math.nan, count, math.nan)
    mean = float(values.mean())
    error = float(values.std(ddof=1)) / math.sqrt(count)
    half_width = float(stdtrit(count - 1, 0.5 + level / 2)) * error
    if np.ptp(values) == 0 or error == 0:  # certain if they are not 0
        return Estimate(mean, half_width, count, float(mean == 0))
    return Estimate(mean, half_width, count, 2 * float(stdtr(count - 1, -abs(mean) / error)))


def mean_and_deviation(values: np.ndarray) -> tuple[float, float]:
    """Return mean and sample deviation of the finite values."""
    values = values[np.isfinite(values)]
    mean = float(values.mean()) if len(values) else math.nan
    return mean, float(values.std(ddof=1)) if len(values) > 1 else math.nan
