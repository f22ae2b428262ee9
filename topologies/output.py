"""Output of the commands: JSON, tables, plots, and checks of the files to write."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from topologies.parameters import TopologyError
from topologies.replacing import replacing
from topologies.writing import check_writable

PICTURES = (".png", ".pdf", ".svg")


def check_outputs(table: str | None, picture: str | None) -> None:
    """Check output files, before anything is computed.

    Parameters
    ----------
    table : str | None
        The CSV file, if any.
    picture : str | None
        The picture, if any; one of ``PICTURES``.

    Raises
    ------
    TopologyError
        If a file has another suffix or may not be written.
    """
    if table:
        check_writable(Path(table))
    if picture:
        if Path(picture).suffix not in PICTURES:
            raise TopologyError(f"{picture!r} must end in one of {', '.join(PICTURES)}")
        check_writable(Path(picture))


def save_figure(figure: Any, path: str) -> None:
    """Save a figure.

    Parameters
    ----------
    figure : matplotlib.figure.Figure
        The figure.
    path : str
        The file.

    Raises
    ------
    TopologyError
        If the file cannot be written.
    """
    try:
        with replacing(path) as file:
            figure.savefig(file, format=Path(path).suffix[1:], dpi=150)
    except OSError as error:
        raise TopologyError(f"cannot write {path!r}: {error.strerror}") from error


def print_json(value: Any) -> None:
    """Print a value as one line of JSON."""
    json.dump(value, sys.stdout)
    print()


def print_table(records: Sequence[Mapping[str, Any]], columns: Iterable[str]) -> None:
    """Print records as a table with aligned columns.

    Parameters
    ----------
    records : Sequence[Mapping[str, Any]]
        The rows.
    columns : Iterable[str]
        The keys to print; the first column is set left, the others right.
    """
    names = tuple(columns)
    cells = [names, *([shown(record[name]) for name in names] for record in records)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(names))]
    for row in cells:
        first, *rest = (f"{row[0]:<{widths[0]}}", *map(str.rjust, row[1:], widths[1:]))
        print("  ".join([first, *rest]).rstrip())


def shown(value: Any) -> str:
    """Return a value as text: six digits of a float, a dash for None.

    Parameters
    ----------
    value : Any
        The value.

    Returns
    -------
    str
        The text.

    Examples
    --------
    >>> shown(1 / 3), shown(None)
    ('0.333333', '-')
    """
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)
