"""A user's own samples in a CSV file: one a row, with a row of names above them."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.data.archives import bare_name, located
from mpifed.data.csv_header import places_in, rows_of
from mpifed.data.tables import Columns, OwnDataset
from mpifed.errors import InputError, one_line
from mpifed.mpi.communicator import Communicator

# Bytes of memory for each byte of the file: a digit and its comma become eight, held twice.
HELD = 9.0

# Characters of a label's or a client's name.
LONGEST = 200

# Numbers that are converted at once, or those of one row.
CELLS = 1 << 16


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
        n_clients: int,
        run_seed: int,
        communicator: Communicator,
        *,
        path: str,
        label: str | None = "label",
        client: str | None = None,
        test: str | None = None,
        features: list[str] | None = None,
        delimiter: str = ",",
        **options: Any,
    ) -> None:
        def find() -> tuple[str, str, Columns]:
            place = located(path, "csv")
            columns = read(place, label, client, test, features, delimiter)
            return f"data.path is '{place}', where", bare_name(place).removesuffix(".csv"), columns

        super().__init__(n_clients, run_seed, communicator, find, **options)


def read(
    path: Path,
    label: str | None,
    client: str | None,
    test: str | None,
    features: Sequence[str] | None,
    delimiter: str = ",",
) -> Columns:
    """Return the samples in a CSV file."""
    with rows_of(path, delimiter, HELD) as rows:
        return _read(path, rows, label, client, test, features)


def _read(
    path: Path,
    rows: Any,
    label: str | None,
    client: str | None,
    test: str | None,
    features: Sequence[str] | None,
) -> Columns:
    header: list[str] = next(rows, [])
    named = {"label": label, "client": client, "test": test}
    places = places_in(path, header, named, features or ())
    others = [name for name in places if name not in named.values()]
    inputs = [places[name] for name in (others if features is None else features)]
    if not inputs:
        raise InputError(f"data.path is '{path}', which has no column of inputs (data.features)")
    x: list[np.ndarray] = []
    texts: dict[str, list[str]] = {option: [] for option, name in named.items() if name is not None}
    for lines, part in _parts(path, rows, len(header)):
        x.append(_numbers(path, lines, part, inputs, header))
        for option, own in texts.items():
            column = places[str(named[option])]
            own += [row[column].strip() for row in part]
    if not x:
        raise InputError(f"data.path is '{path}', which has no sample below its first line")
    for option, own in texts.items():
        if max(map(len, own)) > LONGEST:
            raise InputError(
                f"data.path is '{path}', where a text in the column data.{option} has more than "
                f"{LONGEST} characters"
            )
    values = {option: _typed(own) for option, own in texts.items()}
    return Columns(np.concatenate(x), values.get("label"), values.get("client"), values.get("test"))


def _parts(path: Path, rows: Any, width: int) -> Iterator[tuple[list[int], list[list[str]]]]:
    """Rows that are not empty, ``CELLS`` numbers at a time, and the line of each."""
    lines: list[int] = []
    part: list[list[str]] = []
    for row in rows:
        if not row:
            continue
        if len(row) != width:
            raise InputError(
                f"data.path is '{path}', whose line {rows.line_num} has {len(row)} columns, but "
                f"the first {width}"
            )
        lines.append(rows.line_num)
        part.append(row)
        if len(part) * width >= CELLS:
            yield lines, part
            lines, part = [], []
    if part:
        yield lines, part


def _numbers(
    path: Path,
    lines: list[int],
    part: list[list[str]],
    inputs: Sequence[int],
    header: Sequence[str],
) -> np.ndarray:
    try:
        taken = itertools.chain.from_iterable([row[column] for column in inputs] for row in part)
        numbers = np.fromiter(map(float, taken), np.float64, len(part) * len(inputs))
        return numbers.reshape(len(part), len(inputs))
    except ValueError:
        line, column, text = next(
            (line, header[column], row[column])
            for line, row in zip(lines, part, strict=True)
            for column in inputs
            if not _is_number(row[column])
        )
        raise InputError(
            f"data.path is '{path}', whose line {line} has '{one_line(text, 40)}' in column "
            f"'{one_line(column, 40)}', which is not a number; inputs are all columns but those of "
            "data.label, data.client and data.test, unless data.features names them"
        ) from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _typed(texts: list[str]) -> np.ndarray:
    """Whole numbers, else numbers, else texts."""
    for kind in (np.int64, np.float64):
        try:
            return np.array(texts).astype(kind)
        except (ValueError, OverflowError):
            continue
    return np.array(texts)
