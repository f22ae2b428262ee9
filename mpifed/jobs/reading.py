"""Parts of the files in a run directory, which anyone may have left there."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from mpifed.errors import InputError
from mpifed.io.text import MissingFile, damaged, read_text

# Bytes of a file that is read whole.
MOST = 1 << 24


def read_tail(path: Path, most: int) -> str | None:
    """Return the end of a regular file as text."""
    return _read_part(path, most, from_end=True)


def read_head(path: Path, most: int) -> str | None:
    """Return the first ``most`` bytes of a regular file as text; see :func:`read_tail`."""
    return _read_part(path, most, from_end=False)


def read_rounds(path: Path) -> int | None:
    """Return ``rounds`` of a run's config.yaml."""
    try:
        text = read_text(path, MOST)
    except MissingFile:
        return None
    found = re.search(r"^rounds:[ \t]+([0-9]{1,18})[ \t]*$", text, re.MULTILINE)
    if found is None:
        raise damaged(path, "it has no rounds, a whole number")
    return int(found[1])


def parse_digits(text: Any) -> int | None:
    """Return the integer that ``text`` writes in 1 to 18 ASCII digits; None for anything else."""
    return int(text) if isinstance(text, str) and re.fullmatch(r"[0-9]{1,18}", text) else None


def _read_part(path: Path, most: int, from_end: bool) -> str | None:
    # numpy and networkx come with it, which a command that reads nothing does not need.
    from topologies.inputs import open_regular

    try:
        with open_regular(path) as file:
            if from_end:
                file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read(most).decode("utf-8", errors="replace")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from None
