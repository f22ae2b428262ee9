"""Curves thinned to what a screen shows."""

from __future__ import annotations

import numpy as np


def kept(values: np.ndarray, intervals: int) -> np.ndarray:
    """Return which points of a curve are kept so that its drawing looks the same."""
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
