"""A user's own samples in a CSV file: one a row, with a row of names above them."""

from __future__ import annotations

import csv
import io
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.data.archives import bare_name, located, opened
from mpifed.data.tables import Columns, OwnDataset, check_columns
from mpifed.errors import InputError, one_line

# Bytes of memory for each byte of the file: a digit and its comma become eight, held twice.
HELD = 9.0

# Characters of a label's or a client's name.
LONGEST = 200


class Csv(OwnDataset):
    """Your own samples in a CSV file: a row of names, then one sample a row.

    Parameters
    ----------
    path : str
        The file, plain or with .gz, .xz or .bz2, or its name in ``$MPIFED_DATA/csv``.
    label : str, optional
        Name of the column of targets: numbers or texts. None is for unlabelled data.
    client : str, optional
        Name of the column that says whose each sample is.
    test : str, optional
        Name of a column that is 1 for the samples that ``split: published`` tests on, else 0.
    features : list of str, optional
        Names of the columns of inputs, which are numbers. None takes all others.
    delimiter : str
        One character between columns; ``tab`` is one too.
    """

    def __init__(
        self,
        *run: Any,
        path: str,
        label: str | None = "label",
        client: str | None = None,
        test: str | None = None,
        features: list[str] | None = None,
        delimiter: str = ",",
        **options: Any,
    ) -> None:
        named = {"label": label, "client": client, "test": test}

        def find() -> tuple[str, str, Columns]:
            place = located(path, "csv")
            columns = read(place, named, features, delimiter)
            return f"data.path is '{place}', where", bare_name(place).removesuffix(".csv"), columns

        super().__init__(find, *run, **options)


def read(
    path: Path,
    named: dict[str, str | None],
    features: Sequence[str] | None,
    delimiter: str = ",",
) -> Columns:
    """Return the samples in a CSV file; ``named`` has the columns of other options than inputs."""
    mark = "\t" if delimiter == "tab" else delimiter
    if len(mark) != 1 or mark in '"\r\n':
        raise InputError(f"data.delimiter is {delimiter!r}; it must be one character, or tab")
    with opened(path, HELD) as stream:
        rows = csv.reader(io.TextIOWrapper(stream, "utf-8-sig", newline=""), delimiter=mark)
        return _columns(path, rows, named, features)


def _columns(
    path: Path, rows: Any, named: dict[str, str | None], features: Sequence[str] | None
) -> Columns:
    header = [name.strip() for name in next(rows, [])]
    if not header or len(set(header)) != len(header):
        raise ValueError("its first line must name each column, all differently")
    for name in features or ():
        check_columns(path, header, {"features": name})
    check_columns(path, header, named)
    inputs = [name for name in header if name not in named.values()]
    places = [header.index(name) for name in (inputs if features is None else features)]
    # Texts of labels, clients and marks, by the places of their columns.
    texts: dict[int, list[str]] = {header.index(n): [] for n in named.values() if n is not None}
    x = array("d")
    for row in rows:
        if not row:
            continue
        if len(row) != len(header):
            raise ValueError(
                f"line {rows.line_num} has {len(row)} columns, but the first {len(header)}"
            )
        try:
            x.extend([float(row[place]) for place in places])
        except ValueError as error:
            raise ValueError(
                f"line {rows.line_num}: {one_line(str(error), 80)}; inputs are all columns but "
                "those of data.label, data.client and data.test, unless data.features names them"
            ) from None
        for place, own in texts.items():
            own.append(row[place].strip())
    if not x:
        raise ValueError("it has no sample below its first line, or no column of inputs")
    typed = {name: _typed(texts[header.index(name)]) for name in named.values() if name}
    label, client, test = (typed.get(named.get(o) or "") for o in ("label", "client", "test"))
    return Columns(np.frombuffer(x).reshape(-1, len(places)), label, client, test)


def _typed(texts: list[str]) -> np.ndarray:
    """Whole numbers, else numbers, else texts."""
    if max(map(len, texts)) > LONGEST:
        raise ValueError(f"a label or a client has more than {LONGEST} characters")
    for kind in (np.int64, np.float64):
        try:
            return np.array(texts).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(texts)
