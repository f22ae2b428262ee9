"""A job: its runs, and what SLURM is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed.config.filenames import safe
from mpifed.jobs import options as job_options
from mpifed.jobs.options import JobOptions, Layout
from mpifed.sweep.plan import Planned


@dataclass(frozen=True)
class Job:
    """What is to be submitted.

    ``experiment`` names a shipped experiment; where the user brought a file, ``text`` holds what
    stands in it, and ``experiment`` its name. ``given`` are the options as they were given.
    ``output`` is the run directory, or the one above the run directories of a sweep.
    """

    experiment: str
    text: str | None
    output: Path
    sweep: bool
    runs: tuple[Planned, ...]
    given: dict[str, Any]

    @property
    def options(self) -> JobOptions:
        return job_options.check(self.given)

    @property
    def layout(self) -> Layout:
        return job_options.layout(self.options)

    @property
    def name(self) -> str:
        return safe(str(self.options.name or f"mpifed-{self.experiment}"))
