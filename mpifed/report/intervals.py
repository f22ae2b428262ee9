"""Means over seeds with Student's intervals, and paired differences with Student's test."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

LEVEL = 0.95
MEANING = "± is half the 95 % interval of Student's t over seeds."
"""What ``±`` is in every table, for those that have one."""


@dataclass(frozen=True)
class Estimate:
    """A mean with its interval.

    Attributes
    ----------
    mean : float
        The mean of the finite values, NaN without any.
    half_width : float
        Half the width of the interval, NaN for fewer than two values.
    count : int
        The number of finite values.
    p_value : float
        Of the two-sided test that the mean is 0, NaN where there is no interval.
    """

    mean: float
    half_width: float
    count: int
    p_value: float

    def text(self, form: str, width: str | None = None) -> str:
        """Return the mean, and behind ``±`` half its interval if there is one.

        Parameters
        ----------
        form : str
            How the mean is written, as '.2f'.
        width : str, optional
            How half the interval is written; as the mean without its sign by default.

        Returns
        -------
        str
            The words; a dash without a mean.

        Examples
        --------
        >>> Estimate(0.25, 0.012, 3, 0.1).text("+.2f"), Estimate(0.25, math.nan, 1, 1).text(".2f")
        ('+0.25 ± 0.01', '0.25')
        """
        if math.isnan(self.mean):
            return "–"
        if math.isnan(self.half_width):
            return format(self.mean, form)
        return f"{self.mean:{form}} ± {self.half_width:{width or form.removeprefix('+')}}"


def estimate(values: np.ndarray, level: float = LEVEL) -> Estimate:
    """Return mean and interval of some values, by Student's t distribution.

    Parameters
    ----------
    values : ndarray of float64, shape (n,)
        The values; those that are not finite are left out.
    level : float, default 0.95
        The probability with which the interval covers the expectation of normal values.

    Returns
    -------
    Estimate
        The mean, half the width of its interval, and the p-value.

    Examples
    --------
    >>> found = estimate(np.array([1.0, 2.0, 3.0]))
    >>> found.mean, round(found.half_width, 3), round(found.p_value, 3)
    (2.0, 2.484, 0.074)
    """
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
