"""Files of a run directory as anyone may have left them: of bounded size, and never waited for."""

from __future__ import annotations

import errno
import json
import os
import re
import stat
from pathlib import Path
from typing import Any

from mpifed.errors import InputError
from mpifed.jobs.printing import one_line

MOST = 1 << 24
"""Bytes of a file that is read whole."""


def read_text(path: Path, most: int = MOST) -> str | None:
    """Return the text of a regular file; None where there is none.

    Raises
    ------
    InputError
        If it is no regular file, has more than ``most`` bytes, or is no text in UTF-8.
    """
    content = _read(path, most, whole_file=True)
    try:
        return None if content is None else content.decode("utf-8")
    except UnicodeDecodeError:
        raise damaged(path, "it is no text in UTF-8") from None


def read_tail(path: Path, most: int) -> str | None:
    """Return the last ``most`` bytes of a regular file as text; None where there is none.

    What is no UTF-8 is replaced. Raises ``InputError`` if it is no regular file.
    """
    content = _read(path, most, from_end=True)
    return None if content is None else content.decode("utf-8", errors="replace")


def read_head(path: Path, most: int) -> str | None:
    """Return the first ``most`` bytes of a regular file as text, as :func:`read_tail`."""
    content = _read(path, most)
    return None if content is None else content.decode("utf-8", errors="replace")


def read_json(path: Path) -> Any:
    """Return what a JSON file holds; None where there is no file. Raises ``InputError``."""
    text = read_text(path)
    try:
        return None if text is None else json.loads(text)
    except RecursionError:
        raise damaged(path, "its parts are nested too deep") from None
    except ValueError as error:
        raise damaged(path, str(error)) from None


def read_rounds(path: Path) -> int | None:
    """Return ``rounds`` of a run's config.yaml; None where there is no file.

    A run writes it in a line of its own, so nothing else of the file is read: aliases that are
    nested, dates that are none and depth do not matter. Raises ``InputError`` without that line.
    """
    text = read_text(path)
    if text is None:
        return None
    found = re.search(r"^rounds:[ \t]+([0-9]{1,18})[ \t]*$", text, re.MULTILINE)
    if found is None:
        raise damaged(path, "it has no rounds, a whole number")
    return int(found[1])


def whole(text: Any) -> int | None:
    """Return the whole number that ``text`` is in plain digits; None for anything else.

    >>> whole("12"), whole("1e9"), whole("\u0661\u0662")
    (12, None, None)
    """
    return int(text) if isinstance(text, str) and re.fullmatch(r"[0-9]{1,18}", text) else None


def damaged(path: Path, why: str) -> InputError:
    """Return the error that names a damaged file."""
    return InputError(f"'{path}' is damaged: {one_line(why)}")


def _read(path: Path, most: int, whole_file: bool = False, from_end: bool = False) -> bytes | None:
    try:
        # A pipe without a writer does not make this wait.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            if whole_file and found.st_size > most:
                raise OSError(errno.EFBIG, f"it has {found.st_size} bytes; at most {most} are read")
            if from_end:
                file.seek(max(0, found.st_size - most))
            return file.read(most)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise InputError(f"'{path}' cannot be read: {why}") from None
