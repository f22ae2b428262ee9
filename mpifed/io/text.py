"""Text files and JSON of limited size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeGuard

from mpifed.errors import InputError, one_line

# Largest size of a text file, in bytes.
MOST = 64 << 20

# How the names of spreadsheets end.
SPREADSHEETS = (".xlsx", ".xls", ".xlsm", ".xlsb", ".ods")


class MissingFile(InputError):
    """A file that does not exist."""


def damaged(path: Path, reason: str) -> InputError:
    """Return the error for a file whose content is wrong."""
    return InputError(f"'{path}' is damaged: {one_line(reason, 300)}")


def refuse_spreadsheet(path: str | Path) -> None:
    """Raise ``InputError`` where a file is named as a spreadsheet."""
    if str(path).lower().endswith(SPREADSHEETS):
        raise InputError(
            f"'{path}' is a spreadsheet; save it as CSV or parquet, or pass it in Python as "
            "mpifed.frame(pandas.read_excel(...), label=NAME)"
        )


def read_text(path: Path, most: int = MOST) -> str:
    """Read a regular text file."""
    # It imports numpy and networkx, which a command that reads nothing does not need.
    from topologies.regular_files import read_bytes

    try:
        return read_bytes(path, most).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFile(f"'{path}' is missing") from None
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise damaged(path, "it is not text in UTF-8") from None


def read_json(path: Path, most: int = MOST) -> Any:
    """Read a JSON file."""
    text = read_text(path, most)
    try:
        return json.loads(text)
    except RecursionError:
        raise damaged(path, "its values are nested too deep") from None
    except ValueError as error:
        raise damaged(path, str(error)) from None


def is_count(value: Any) -> TypeGuard[int]:
    """Return whether ``value`` is an integer, at least 0, that fits into 64 bits."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_number(value: Any) -> TypeGuard[float]:
    """Return whether ``value`` is a number that fits into float64, including NaN and infinity."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or abs(value) < 2**1023
