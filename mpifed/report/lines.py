"""Curves on one pair of axes, each named in the right margin beside its last value."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's colours, which colour-blind readers can distinguish, without their yellow, which
# is too faint for a line; with more methods than colours the dashes distinguish them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (5, 2, 1, 2)))
GREY = "#595959"
STYLE: Any = {
    "font.size": 11,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.titlepad": 24,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.grid": True,
    "grid.color": "#E5E5E5",
    "axes.axisbelow": True,
    "lines.linewidth": 2,
    "lines.markersize": 4,
    "savefig.dpi": 200,
    "savefig.bbox": "tight",
    "savefig.facecolor": "white",
}
SIZE = (6.6, 4.2)  # inches, without the names in the right margin
AXES = (0.1, 0.12, 0.88, 0.76)  # left, bottom, width, height as parts of it
LINE_HEIGHT = 15  # points between two names in the margin
FEW_POINTS = 12  # up to so many points each gets a marker


@dataclass(frozen=True)
class Look:
    """The colour and dashes of one method, the same in every figure.

    Attributes
    ----------
    colour : str
        A matplotlib colour.
    dashes : Any
        A matplotlib line style.
    """

    colour: str
    dashes: Any


@dataclass(frozen=True)
class Line:
    """One curve of finite points.

    Attributes
    ----------
    x : ndarray, shape (points,)
        The places.
    y : ndarray, shape (points,)
        The values.
    band : ndarray, shape (points,)
        The half width of the band around them.
    name : str
        The name in the margin.
    look : Look
        The colour and dashes.
    """

    x: np.ndarray
    y: np.ndarray
    band: np.ndarray
    name: str
    look: Look


def look(index: int) -> Look:
    """Return the look of the ``index``-th method."""
    dashes = DASHES[index // len(COLOURS) % len(DASHES)]
    return Look(COLOURS[index % len(COLOURS)], dashes)


def new_axes(title: str, subtitle: str, x_label: str) -> tuple[Figure, Axes]:
    """Return an empty figure; its title says what the vertical axis shows.

    Parameters
    ----------
    title : str
        The title.
    subtitle : str
        The line below it.
    x_label : str
        The label of the x axis.

    Returns
    -------
    tuple of Figure and Axes
        The figure and its axes.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE)
    axes = figure.add_axes(AXES)
    axes.set_title(title)
    axes.text(0, 1.03, subtitle, transform=axes.transAxes, color=GREY, fontsize=10)
    axes.set_xlabel(x_label)
    return figure, axes


def draw_lines(axes: Axes, lines: Sequence[Line]) -> None:
    """Draw lines; each one's last value is extended to its name in the right margin.

    Parameters
    ----------
    axes : Axes
        The axes to draw into.
    lines : Sequence[Line]
        The lines.
    """
    start, end = min(line.x[0] for line in lines), max(line.x[-1] for line in lines)
    axes.set_xlim(start, end if end > start else start + 1)
    for line in lines:
        marker = "o" if len(line.x) <= FEW_POINTS else None
        colour = line.look.colour
        axes.plot(line.x, line.y, color=colour, linestyle=line.look.dashes, marker=marker,
                  clip_on=False, zorder=3)  # fmt: skip
        axes.fill_between(line.x, line.y - line.band, line.y + line.band, color=colour, alpha=0.18,
                          linewidth=0)  # fmt: skip
        if line.x[-1] < end:
            axes.plot([line.x[-1], end], [line.y[-1]] * 2, color=colour, linewidth=1,
                      linestyle=(0, (1, 2)))  # fmt: skip
    _name_lines(axes, lines)


def spread(heights: np.ndarray, gap: float = LINE_HEIGHT) -> np.ndarray:
    """Return heights moved apart so that neighbours are at least ``gap`` apart.

    Neighbours that are too close form a bundle around their mean; bundles that meet are joined.

    Parameters
    ----------
    heights : ndarray of float64, shape (n,)
        The heights, in any order.
    gap : float, default LINE_HEIGHT
        The least distance.

    Returns
    -------
    ndarray of float64, shape (n,)
        The new heights, in the same order.

    Examples
    --------
    >>> spread(np.array([0.0, 1.0, 9.0]), gap=2.0)
    array([-0.5,  1.5,  9. ])
    """
    order = np.argsort(heights, kind="stable")
    bundles: list[list[float]] = []
    for height in heights[order]:
        bundles.append([float(height)])
        while (
            len(bundles) > 1 and _places(bundles[-2], gap)[-1] + gap > _places(bundles[-1], gap)[0]
        ):
            bundles[-2:] = [bundles[-2] + bundles[-1]]
    placed = np.empty(len(heights))
    placed[order] = np.concatenate([_places(bundle, gap) for bundle in bundles])
    return placed


def _places(bundle: Sequence[float], gap: float) -> np.ndarray:
    return np.mean(bundle) + gap * (np.arange(len(bundle)) - (len(bundle) - 1) / 2)


def _name_lines(axes: Axes, lines: Sequence[Line]) -> None:
    axes.get_ylim()  # settles the scale that the transformation below uses
    last = np.array([line.y[-1] for line in lines])
    on_screen = axes.transData.transform([(line.x[-1], line.y[-1]) for line in lines])
    heights = (
        axes.transAxes.inverted().transform(on_screen)[:, 1] * AXES[3] * SIZE[1] * 72
    )  # points
    for line, value, shift in zip(lines, last, spread(heights) - heights, strict=True):
        axes.annotate(
            line.name, (1, value), xycoords=("axes fraction", "data"), xytext=(8, shift),
            textcoords="offset points", va="center", color=line.look.colour, fontweight="bold",
            annotation_clip=False,
        )  # fmt: skip
