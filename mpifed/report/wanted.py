"""What --figure and its options ask for."""

from __future__ import annotations

from dataclasses import dataclass

from mpifed.config.experiments import safe
from mpifed.report.columns import COLUMNS, MEASURES
from mpifed.report.keys import short

PROGRESS = {
    "rounds": ("round", "communication round"),
    "bits": ("up_bits", "bits sent by all clients"),
    "floats": ("up_floats", "numbers sent by all clients"),
    "simulated_seconds": ("simulated_seconds", "seconds of the simulated federation"),
}
"""Values of x that are not keys, each with its column and the label of the axis."""


@dataclass(frozen=True)
class Wanted:
    """A figure to draw.

    Attributes
    ----------
    column : str
        The column of metrics.csv on the y axis.
    x : str
        "rounds", "bits", "floats" or a dotted key.
    by : tuple[str, ...]
        Dotted keys; each combination of their values makes a line.
    linear : bool
        Whether the y axis is linear, not logarithmic.
    aside : tuple[str, ...]
        Dotted keys or sections that do not separate panels.
    until : float | None
        The largest x that is drawn.
    """

    column: str
    x: str = "rounds"
    by: tuple[str, ...] = ()
    linear: bool = False
    aside: tuple[str, ...] = ()
    until: float | None = None


def file_name(wanted: Wanted) -> str:
    """Return the name of the figure's file, without an ending, another for each request.

    Parameters
    ----------
    wanted : Wanted
        The request.

    Examples
    --------
    >>> file_name(Wanted("objective_gap", "floats", ("algorithm.flix_alpha",)))
    'objective-gap-floats-by-flix-alpha'
    >>> file_name(Wanted("test_accuracy"))  # the report has a test-accuracy-rounds of its own
    'test-accuracy-rounds-figure'
    """
    words = [wanted.column, wanted.x, *(["by", *map(short, wanted.by)] if wanted.by else [])]
    words += ["aside", *map(short, wanted.aside)] if wanted.aside else []
    words += [f"until-{wanted.until:g}"] if wanted.until is not None else []
    words += ["linear"] if wanted.linear else []
    own = wanted.column in (*COLUMNS, *MEASURES) and wanted.x in PROGRESS and len(words) == 2
    return safe(
        "-".join([*words, *(["figure"] if own else [])]).replace("_", "-").replace(".", "-")
    )
