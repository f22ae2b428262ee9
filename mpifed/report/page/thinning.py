"""Curves thinned to what a screen shows."""

from __future__ import annotations

import numpy as np


def kept(values: np.ndarray, intervals: int) -> np.ndarray:
    """Return which points of a curve are kept so that its drawing looks the same.

    The curve is cut into ``intervals`` parts of equally many points. The least and the largest
    value of each are kept, and the first and the last point.

    Parameters
    ----------
    values : ndarray of float64, shape (points,)
        The values, finite.
    intervals : int
        The number of parts.

    Returns
    -------
    ndarray of int64, shape (kept,)
        Places of the points, rising; all of them where they are at most twice ``intervals``.

    Examples
    --------
    >>> kept(np.array([0.0, 5.0, 1.0, 1.0, 2.0, -3.0, 1.0]), 2).tolist()
    [0, 1, 4, 5, 6]
    """
    points = len(values)
    if points <= 2 * intervals:
        return np.arange(points)
    edges = np.linspace(0, points, intervals + 1).astype(int)
    width = int(np.diff(edges).max())
    # Each part as a row; the shorter ones repeat their last point.
    places = np.minimum(edges[:-1, None] + np.arange(width), edges[1:, None] - 1)
    parts = values[places]
    rows = np.arange(intervals)
    chosen = [places[rows, parts.argmin(axis=1)], places[rows, parts.argmax(axis=1)]]
    return np.unique(np.concatenate([*chosen, [0, points - 1]]))
