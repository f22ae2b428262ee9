"""The first line of a CSV file, which names its columns."""

from __future__ import annotations

import contextlib
import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from mpifed.data.archives import opened
from mpifed.errors import InputError, closest, one_line

# Options that name a column.
NAMED = ("label", "client", "test")


@contextlib.contextmanager
def rows_of(path: Path, delimiter: str = ",", held: float = 0.0) -> Iterator[Any]:
    """Open a CSV file, and yield the reader of its rows."""
    mark = "\t" if delimiter == "tab" else delimiter
    if len(mark) != 1 or mark in '"\r\n':
        raise InputError(f"data.delimiter is {delimiter!r}; it must be one character, or tab")
    with opened(path, held=held) as stream:
        text = io.TextIOWrapper(stream, "utf-8-sig", newline="")
        try:
            yield csv.reader(text, delimiter=mark)
        except UnicodeDecodeError:
            raise InputError(f"data.path is '{path}', which is not text in UTF-8") from None
        except csv.Error as error:
            raise InputError(f"data.path is '{path}', which is not a CSV file ({error})") from None
        finally:
            text.detach()


def places_in(
    path: Path, header: Sequence[str], named: Mapping[str, str | None], features: Sequence[str]
) -> dict[str, int]:
    """Return the places of columns by name."""
    places = {name.strip(): number for number, name in enumerate(header)}
    if not header or len(places) != len(header):
        raise InputError(
            f"data.path is '{path}', whose first line must name each column, all differently"
        )
    for option, name in [*named.items(), *(("features", each) for each in features)]:
        if name is not None and name not in places:
            raise InputError(
                f"data.{option} is '{one_line(name, 60)}', but '{path}' has no such column; "
                f"{closest(name, places)}"
            )
    return places


def check_columns(path: Path, options: Mapping[str, Any]) -> None:
    """Refuse options of ``Csv`` that name columns which a file does not have."""
    with rows_of(path, options.get("delimiter", ",")) as rows:
        named = {option: options.get(option) for option in NAMED}
        named["label"] = options.get("label", "label")
        places_in(path, next(rows, []), named, options.get("features") or ())
