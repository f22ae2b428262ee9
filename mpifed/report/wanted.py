"""What --figure and its options ask for."""

from __future__ import annotations

from dataclasses import dataclass

from mpifed.config.experiments import safe
from mpifed.report.columns import COLUMNS, MEASURES
from mpifed.report.keys import short

# Values of x that are not keys, each with its column and the label of the axis.
PROGRESS = {
    "rounds": ("round", "communication round"),
    "bits": ("up_bits", "bits sent by all clients"),
    "floats": ("up_floats", "numbers sent by all clients"),
    "simulated_seconds": ("simulated_seconds", "seconds of the simulated federation"),
}


@dataclass(frozen=True)
class Wanted:
    """A figure to draw."""

    column: str
    x: str = "rounds"
    by: tuple[str, ...] = ()
    linear: bool = False
    aside: tuple[str, ...] = ()
    until: float | None = None


def file_name(wanted: Wanted) -> str:
    """Return the name of the figure's file, without an ending, another for each request."""
    words = [wanted.column, wanted.x, *(["by", *map(short, wanted.by)] if wanted.by else [])]
    words += ["aside", *map(short, wanted.aside)] if wanted.aside else []
    words += [f"until-{wanted.until:g}"] if wanted.until is not None else []
    words += ["linear"] if wanted.linear else []
    own = wanted.column in (*COLUMNS, *MEASURES) and wanted.x in PROGRESS and len(words) == 2
    return safe(
        "-".join([*words, *(["figure"] if own else [])]).replace("_", "-").replace(".", "-")
    )
