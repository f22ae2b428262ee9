"""Colours, dashes and markers of lines: a method keeps its colour from report to report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mpifed.report.names import colour_of

# Okabe and Ito's colours, which colour-blind readers can distinguish, without their yellow, which
# is too faint for a line, and two of Tol's. Dashes and markers distinguish what shares a colour.
COLOURS = (
    "#0072B2",
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#E69F00",
    "#56B4E9",
    "#000000",
    "#882255",
    "#7A7A1F",
)
# Lengths of strokes and gaps in units of the line's width; none for a solid line.
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1, 1.5), (5, 2, 1, 2), (8, 2, 1, 2, 1, 2))
# Shapes, as matplotlib names them.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")


@dataclass(frozen=True)
class Look:
    """How a line is drawn."""

    colour: str
    strokes: tuple[float, ...] = ()
    marker: str = "o"

    @property
    def dashes(self) -> Any:
        """The line style for matplotlib."""
        return (0, self.strokes) if self.strokes else "-"


def look(index: int) -> Look:
    """Return the look of the ``index``-th line, where lines are no methods."""
    return _look(index % len(COLOURS), index // len(COLOURS), index)


def looks(methods: Sequence[tuple[str, str]]) -> dict[str, Look]:
    """Return how each method is drawn, given the names of algorithms with the methods' labels.

    Up to nine algorithms have nine colours, and methods of one algorithm differ in dashes; of one
    algorithm alone they differ in colours first. Two look alike only beyond 45 of them.
    """
    first = _first_colours([name for name, _ in methods])
    order = {label: index for index, (_, label) in enumerate(methods)}
    taken: Counter[tuple[int, int]] = Counter()
    found = {}
    # The label without settings before those with some.
    for name, label in sorted(methods, key=lambda one: "," in one[1]):
        colours = [(first[name] + k) % len(COLOURS) for k in range(len(COLOURS))]
        by_dash = [(c, d) for d in range(len(DASHES)) for c in colours]
        own = [] if len(first) == 1 else [(colours[0], d) for d in range(len(DASHES))]
        pair = min(own + by_dash, key=taken.__getitem__)
        taken[pair] += 1
        found[label] = _look(*pair, order[label])
    return {label: found[label] for label in order}


def _look(colour: int, dashes: int, marker: int) -> Look:
    return Look(COLOURS[colour], DASHES[dashes % len(DASHES)], MARKERS[marker % len(MARKERS)])


def _first_colours(names: Sequence[str]) -> dict[str, int]:
    """The colour of each algorithm: its own, else the next one that is free, while there are."""
    found: dict[str, int] = {}
    order = sorted(set(names), key=lambda name: (colour_of(name), name))
    wanted = {name: colour_of(name) % len(COLOURS) for name in order}
    for name, colour in wanted.items():
        if colour not in found.values():
            found[name] = colour
    for name, colour in wanted.items():
        free = ((colour + k) % len(COLOURS) for k in range(len(COLOURS)))
        found.setdefault(name, next((c for c in free if c not in found.values()), colour))
    return {name: found[name] for name in names}
