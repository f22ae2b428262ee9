"""What launchers say of a job by environment variables: the number of a process, and how many."""

from __future__ import annotations

import os
from collections.abc import Iterable

# What launchers call the number of a process in its job, and the number of processes.
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
SIZE_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")


def launched_rank() -> int | None:
    """Return the number of this process in its job; None without a launcher."""
    return in_environment(RANK_VARIABLES)


def is_silent() -> bool:
    """Return whether another process of the job answers: the first of several does."""
    return bool(launched_rank()) and (in_environment(SIZE_VARIABLES) or 1) > 1


def in_environment(names: Iterable[str]) -> int | None:
    """Return the number in the first of these environment variables that has one."""
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal() and value.isascii()), None)
