"""Text files and JSON, no larger than such a file can be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, TypeGuard

from mpifed.errors import InputError, one_line

MOST = 64 << 20
"""Bytes of a text file that is read at most."""


class MissingFile(InputError):
    """A file that does not exist."""


def damaged(path: Path, reason: str) -> InputError:
    """The error for a file at ``path`` whose content is wrong."""
    return InputError(f"'{path}' is damaged: {one_line(reason, 300)}")


def read_text(path: Path, most: int = MOST) -> str:
    """The text of the regular file ``path``.

    Raises
    ------
    MissingFile
        If it does not exist.
    InputError
        If it cannot be read, has more than ``most`` bytes, or is not text in UTF-8.
    """
    # numpy and networkx come with it, which a command that reads nothing does not need.
    from topologies.inputs import read_bytes

    try:
        return read_bytes(path, most).decode("utf-8")
    except (FileNotFoundError, NotADirectoryError):
        raise MissingFile(f"'{path}' is missing") from None
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise damaged(path, "it is not text in UTF-8") from None


def read_json(path: Path, most: int = MOST) -> Any:
    """The value in the JSON file ``path``.

    Raises
    ------
    InputError
        As by ``read_text``, or if it is not JSON.
    """
    text = read_text(path, most)
    try:
        return json.loads(text)
    except RecursionError:
        raise damaged(path, "its values are nested too deep") from None
    except ValueError as error:
        raise damaged(path, str(error)) from None


def is_count(value: Any) -> TypeGuard[int]:
    """Whether ``value`` is a whole number, at least 0, that 64 bits hold."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63


def is_number(value: Any) -> TypeGuard[float]:
    """Whether ``value`` is a number that float64 holds; NaN and infinity are."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isinstance(value, float) or abs(value) < 2**1023
