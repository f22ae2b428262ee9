"""Colours, dashes and markers of lines: a method keeps its colour from report to report."""

from __future__ import annotations

import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
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
# Lengths of strokes and gaps in units of the line's width; none for a solid line.
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1, 1.5), (5, 2, 1, 2), (8, 2, 1, 2, 1, 2))

# Shapes, as matplotlib names them.
MARKERS = ("o", "s", "^", "D", "v", "P", "X")

# Places in ``COLOURS`` by title; methods that papers compare have different ones. There are more
# methods than colours. Of two in a report with one place the first named here has it.
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
    return Look(
        COLOURS[index % len(COLOURS)],
        DASHES[index // len(COLOURS) % len(DASHES)],
        MARKERS[index % len(MARKERS)],
    )


def colour_of(title: str) -> int:
    """Return the place in ``COLOURS`` of a method, wherever no other in its report has it."""
    plain = title.removeprefix("D-")
    known = COLOUR_OF.get(plain)
    return zlib.crc32(plain.encode()) % len(COLOURS) if known is None else known


def looks(methods: Sequence[tuple[str, str]]) -> dict[str, Look]:
    """Return how each method is drawn; two of them look alike only beyond 45 of them."""
    titles = {label: title for title, label in methods}
    plain = [title.removeprefix("D-") for title in titles.values()]
    counts = {title: plain.count(title) for title in dict.fromkeys(plain)}
    least = 1 if len(set(titles.values())) == 1 else 2
    sharing = _sharing(list(counts.values()), least)
    places = _further(_first_colours(plain), counts, sharing)
    ranks = _ranks(titles)
    used: Counter[tuple[int, int]] = Counter()
    found = {}
    for index, (label, title) in enumerate(zip(titles, plain, strict=True)):
        mine = places[title]
        place = mine[min(ranks[label] // sharing, len(mine) - 1)]
        pairs = [(place, dash) for dash in range(len(DASHES))]
        if all(used[pair] for pair in pairs):  # any other colour, the one that is rarest so far
            pairs += [(c, d) for d in range(len(DASHES)) for c in range(len(COLOURS))]
        pair = min(pairs, key=lambda one: used[one])
        used[pair] += 1
        found[label] = Look(COLOURS[pair[0]], DASHES[pair[1]], MARKERS[index % len(MARKERS)])
    return found


def _ranks(titles: Mapping[str, str]) -> dict[str, int]:
    """The place of each label among those of its method, from the one without settings on."""
    found: dict[str, int] = {}
    for title in {title.removeprefix("D-") for title in titles.values()}:
        labels = [label for label, t in titles.items() if t.removeprefix("D-") == title]
        first = labels.index(title) if title in labels else 0
        found |= {label: k for k, label in enumerate(labels[first:] + labels[:first])}
    return found


def _sharing(counts: Sequence[int], least: int) -> int:
    """The settings of a method that share a colour: as few as the colours allow."""
    for sharing in range(least, len(DASHES)):
        if sum(-(-count // sharing) for count in counts) <= len(COLOURS):
            return sharing
    return len(DASHES)


def _first_colours(titles: Sequence[str]) -> dict[str, int]:
    """The colour of each title: its own, one that is free, or that of the farthest other title."""
    known = list(COLOUR_OF)
    order = sorted(set(titles), key=lambda t: (known.index(t) if t in known else len(known), t))
    found: dict[str, int] = {}
    for title in order:
        if colour_of(title) not in found.values():
            found[title] = colour_of(title)
    for title in order:
        if title not in found:
            found[title] = _freest(colour_of(title), title, found, titles)
    return found


def _freest(start: int, title: str, found: Mapping[str, int], titles: Sequence[str]) -> int:
    """The first colour from ``start`` on that is free, else that with the most lines between."""
    free = [c for c in _colours_from(start) if c not in found.values()]
    if free:
        return free[0]

    def apart(colour: int) -> int:
        others = [k for k, t in enumerate(titles) if found.get(t) == colour]
        mine = [k for k, t in enumerate(titles) if t == title]
        return min(abs(a - b) for a in mine for b in others)

    return max(_colours_from(start), key=apart)


def _further(
    first: Mapping[str, int], counts: Mapping[str, int], sharing: int
) -> dict[str, list[int]]:
    """The colours of each title, its first and, while there are any, as many as it needs."""
    found = {title: [first[title]] for title in counts}
    taken = set(first.values())
    for title, count in counts.items():
        wanted = -(-count // sharing) - 1
        more = [c for c in _colours_from(first[title]) if c not in taken][:wanted]
        found[title] += more
        taken.update(more)
    return found


def _colours_from(start: int) -> list[int]:
    return [(start + k) % len(COLOURS) for k in range(len(COLOURS))]
