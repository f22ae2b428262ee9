"""Where names, markers and bars of the lines of a panel are, so that none covers another."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

LINE_HEIGHT = 15  # points between two names in the margin
FEW_POINTS = 12  # up to so many points each gets a marker
MARKED = 6  # markers on a line of more points


def marked(points: int, index: int, lines: int) -> list[int]:
    """Return the points of a line that have markers: all of few, else some, apart from the
    others'.
    """
    if points <= FEW_POINTS:
        return list(range(points))
    shift = (index + 0.5) / lines
    return [int((k + shift) * (points - 1) / MARKED) for k in range(MARKED)]


def beside(
    x: np.ndarray, moved: Sequence[float], index: int, width: float, ends: tuple[float, float]
) -> np.ndarray:
    """Return where the bars of a line are, beside those of the others and within the axes."""
    room = width * (max(moved) + 0.5)
    return np.clip(x, ends[0] + room, ends[1] - room) + width * moved[index]


def spread(
    heights: np.ndarray,
    sizes: float | np.ndarray = LINE_HEIGHT,
    ends: tuple[float, float] = (-np.inf, np.inf),
) -> np.ndarray:
    """Return the middles of names moved apart so that none covers another."""
    order = np.argsort(heights, kind="stable")
    room = np.broadcast_to(np.asarray(sizes, dtype=float), heights.shape)[order]
    # How far each is from the first where all touch; what is left must not decrease.
    from_first = np.concatenate([[0.0], np.cumsum((room[1:] + room[:-1]) / 2)])
    bundles: list[list[float]] = []
    for target in heights[order] - from_first:
        bundles.append([float(target)])
        while len(bundles) > 1 and np.mean(bundles[-2]) > np.mean(bundles[-1]):
            bundles[-2:] = [bundles[-2] + bundles[-1]]
    starts = np.concatenate([np.full(len(bundle), np.mean(bundle)) for bundle in bundles])
    least, most = ends[0] + room[0] / 2, ends[1] - room[-1] / 2 - from_first[-1]
    placed = np.empty(len(heights))
    placed[order] = np.clip(starts, least, max(least, most)) + from_first
    return placed
