"""Checks of mixing matrices: what keeps one from being non-negative and doubly stochastic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from scipy import sparse

BUILT_TOLERANCE = 1e-12

IMPORT_TOLERANCE = 1e-8

NEGATIVE = "entries are negative"


@dataclass(frozen=True)
class Violation:
    """One property that does not hold.

    Attributes
    ----------
    name : str
        What is violated.
    value : float
        By how much.
    tolerance : float
        How much is allowed.
    """

    name: str
    value: float
    tolerance: float

    def __str__(self) -> str:
        return f"{self.name} by {self.value:.3g} (allowed {self.tolerance:.3g})"


@dataclass(frozen=True)
class Report:
    """The violations found in a matrix.

    Attributes
    ----------
    violations : tuple[Violation, ...]
        The violations; empty if every property holds.
    """

    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        """Whether every property holds."""
        return not self.violations

    def __str__(self) -> str:
        return "; ".join(map(str, self.violations)) or "no violation"


def violations(array: sparse.csr_array, tolerance: float) -> Report:
    """Check that a square array is finite, non-negative and doubly stochastic.

    Parameters
    ----------
    array : sparse.csr_array
        The entries, shape (n, n).
    tolerance : float
        The largest violation allowed.

    Returns
    -------
    Report
        The violations.
    """
    if not np.isfinite(array.data).all():
        return Report((Violation("entries are not finite", float("inf"), 0.0),))
    excess = {
        "rows do not sum to one": np.abs(array.sum(axis=1) - 1).max(),
        "columns do not sum to one": np.abs(array.sum(axis=0) - 1).max(),
        NEGATIVE: -min(array.data.min(initial=0.0), 0.0),
    }
    return Report(
        tuple(Violation(name, float(v), tolerance) for name, v in excess.items() if v > tolerance)
    )
