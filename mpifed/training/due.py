"""What a finished run must have recorded: which rounds have a row, and which a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from mpifed.checkpoint.files import Meta
from mpifed.errors import InputError
from mpifed.io.text import read_text
from mpifed.training.resume import ResumePoint, only_as_last

RESUMED = re.compile(r"^resumed from .* after round ([0-9]{1,18})$", re.MULTILINE)


def line_of_resume(point: ResumePoint) -> str:
    """Return the line of log.txt that says where a run was resumed."""
    return f"resumed from {point.path.name} after round {point.meta.round}"


def resumed_after(log: Path) -> int:
    """Return the round after which a run was resumed last; 0 where it was not, or none is told."""
    try:
        found = RESUMED.findall(read_text(log))
    except InputError:
        return 0
    return int(found[-1]) if found else 0


def rounds_due(mapping: Mapping[str, Any], metas: Iterable[Meta], resumed: int) -> set[int]:
    """Return the rounds of which metrics.csv must have a row."""
    last, every = int(mapping["rounds"]), int(mapping["evaluation"]["every"])
    due = {0, last, *range((resumed // every + 1) * every, last, every)}
    for meta in metas:
        # The last checkpoint holds all rows, unless an earlier part of the run wrote it.
        whole = meta.round == last > resumed
        place = meta.columns.index("round") if meta.rows else 0
        recorded = {int(row[place]) for row in meta.rows}
        due |= {
            number
            for number in recorded
            if (whole or number <= min(resumed, last)) and not only_as_last(meta, number)
        }
    return due
