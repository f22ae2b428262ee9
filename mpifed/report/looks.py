"""Colours, dashes and markers of lines: the same colour for the same method in every report."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1, 1.5), (5, 2, 1, 2), (8, 2, 1, 2, 1, 2))
"""Lengths of strokes and gaps in units of the line's width; none for a solid line."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")
"""Shapes, as matplotlib names them."""

COLOUR_OF = {
    "FedEM": 0,
    "FedAvg": 1,
    "Local": 2,
    "FedProx": 3,
    "FedAvg+": 4,
    "Clustered FL": 5,
    "pFedMe": 6,
    "SCAFFOLD": 7,
    "Ditto": 8,
    "APFL": 0,
    "MOCHA": 2,
    "FedPer": 4,
    "FedRep": 5,
    "FedGMM": 7,
    "IFCA": 8,
    "FLIX": 0,
    "DCGD": 1,
    "DIANA": 2,
    "FO-MAML": 3,
    "Reptile": 4,
    "Scaffnew": 5,
    "FedMM": 0,
    "FedMM-Θ": 1,
    "SA-SSMM": 2,
    "FedMGS": 3,
    "FedMM-OT": 0,
    "FedAdam": 4,
    "K-GT": 2,
    "ADMM": 3,
}
"""Places in ``COLOURS`` by title; methods that papers compare have different ones."""


@dataclass(frozen=True)
class Look:
    """How a line is drawn.

    Attributes
    ----------
    colour : str
        Its colour, as '#0072B2'.
    strokes : tuple of float
        Lengths of strokes and gaps, one of ``DASHES``.
    marker : str
        The shape of its markers, one of ``MARKERS``.
    """

    colour: str
    strokes: tuple[float, ...] = ()
    marker: str = "o"

    @property
    def dashes(self) -> Any:
        """The line style for matplotlib."""
        return (0, self.strokes) if self.strokes else "-"


def look(index: int) -> Look:
    """Return the look of the ``index``-th line, where lines are no methods."""
    return Look(
        COLOURS[index % len(COLOURS)],
        DASHES[index // len(COLOURS) % len(DASHES)],
        MARKERS[index % len(MARKERS)],
    )


def colour_of(title: str) -> int:
    """Return the place in ``COLOURS`` of a method, the same in every report.

    Parameters
    ----------
    title : str
        The title of the method; under gossip it has the colour that it has under a server.

    Examples
    --------
    >>> colour_of("FedEM"), colour_of("D-FedEM"), colour_of("D-FedAvg")
    (0, 0, 1)
    """
    plain = title.removeprefix("D-")
    known = COLOUR_OF.get(plain)
    return zlib.crc32(plain.encode()) % len(COLOURS) if known is None else known


def looks(methods: Sequence[tuple[str, str]]) -> dict[str, Look]:
    """Return how each method is drawn.

    The colour belongs to the title. Where all methods have one title (a comparison of its
    settings), the first has its colour and the others have the colours after it. Lines of one
    colour differ in dashes, and all of a report in markers as far as these reach.

    Parameters
    ----------
    methods : sequence of (str, str)
        Title and label of each method, as ``("FedEM", "FedEM, lr=0.1")``.

    Returns
    -------
    dict of str to Look
        By label.

    Examples
    --------
    >>> found = looks([("FedEM", "FedEM"), ("D-FedEM", "D-FedEM")])
    >>> found["FedEM"].colour == found["D-FedEM"].colour, found["D-FedEM"].strokes
    (True, (5, 2))
    """
    titles = {label: title for title, label in methods}
    alone = len(set(titles.values())) == 1
    used: dict[int, int] = {}
    found = {}
    for index, (label, title) in enumerate(titles.items()):
        place = (colour_of(title) + (index if alone else 0)) % len(COLOURS)
        before = used.get(place, 0)
        used[place] = before + 1
        strokes = DASHES[before % len(DASHES)]
        found[label] = Look(COLOURS[place], strokes, MARKERS[index % len(MARKERS)])
    return found
