"""What ``mpifed report`` writes of run directories."""

from __future__ import annotations

import contextlib
import csv
import io
import tempfile
from dataclasses import dataclass
from pathlib import Path

from mpifed.testing import run_command


@dataclass(frozen=True)
class Report:
    """The texts of a report by the names of its files, and what it printed."""

    texts: dict[str, str]
    printed: str

    def rows(self, name: str = "table.csv") -> list[dict[str, str]]:
        return list(csv.DictReader(self.texts[name].splitlines()))

    @property
    def methods(self) -> dict[tuple[str, str], int]:
        """The seeds of each method on each data set, in the order of the table."""
        return {(row["data"], row["method"]): int(row["seeds"]) for row in self.rows()}

    @property
    def notes(self) -> list[str]:
        lines = self.texts["table.md"].splitlines()
        return [line.removeprefix("* ") for line in lines if line.startswith("* ")]


def report(*words: object) -> Report:
    """The report of some run directories, without pictures."""
    printed = io.StringIO()
    with tempfile.TemporaryDirectory() as folder:
        command = ["report", *words, "--format", "none", "--output", folder]
        with contextlib.redirect_stdout(printed):
            assert run_command(command) == 0
        texts = {path.name: path.read_text("utf-8") for path in Path(folder).iterdir()}
    return Report(texts, printed.getvalue())
