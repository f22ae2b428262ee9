"""A run that is yet to be made: one of a sweep, or of a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Planned:
    """One run of a sweep: its directory, the overrides that make it, and its data section.

    ``linked`` are the keys of the overrides that name other runs, ``needs`` the directories of
    these, which must be finished before this one begins.
    """

    directory: Path
    overrides: dict[str, Any]
    data: dict[str, Any]
    linked: tuple[str, ...] = ()
    needs: tuple[Path, ...] = ()

    def finished(self) -> bool:
        return _finished(self.directory)

    def waits_for(self) -> Path | None:
        """The first of the runs that this one needs which is not finished; None if all are."""
        return next((place for place in self.needs if not _finished(place)), None)


def _finished(directory: Path) -> bool:
    return (directory / "DONE").exists()
