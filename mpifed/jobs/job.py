"""A job: its runs, and the resources that it requests from SLURM."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed.config.experiments import safe
from mpifed.jobs import options as job_options
from mpifed.jobs.options import JobOptions, Layout
from mpifed.sweep.plan import Planned


@dataclass(frozen=True)
class Job:
    """What is to be submitted."""

    experiment: str
    text: str | None
    output: Path
    sweep: bool
    runs: tuple[Planned, ...]
    given: dict[str, Any]

    @property
    def options(self) -> JobOptions:
        """The complete, checked options; raises ``InputError``."""
        return job_options.check(self.given)

    @property
    def layout(self) -> Layout:
        """Ranks and nodes."""
        return job_options.layout(self.options)

    @property
    def name(self) -> str:
        """The name of the job in SLURM."""
        return safe(str(self.options.name or f"mpifed-{self.experiment}"))
