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


def is_rank() -> bool:
    """Whether this process is a rank of a job, and not the only task that SLURM has started.

    That may start ranks itself: a batch script, or a shell on a node (``srun --pty``).
    """
    return launched_rank() is not None and not _is_only_task()


def _is_only_task() -> bool:
    return "SLURM_PROCID" in os.environ and (in_environment(SIZE_VARIABLES) or 1) == 1


def outside_step() -> dict[str, str]:
    """Return the environment in which a launcher starts all ranks on this computer.

    In a step of one task, launchers would have SLURM start ranks, which it has no room for.
    """
    in_step = _is_only_task() and "SLURM_STEP_NUM_TASKS" in os.environ
    by_slurm = ("SLURM", "PMI") if in_step else ()
    return {name: value for name, value in os.environ.items() if not name.startswith(by_slurm)}


def is_silent() -> bool:
    """Return whether another process of the job answers: the first of several does."""
    return bool(launched_rank()) and (in_environment(SIZE_VARIABLES) or 1) > 1


def in_environment(names: Iterable[str]) -> int | None:
    """Return the number in the first of these environment variables that has one."""
    values = (os.environ.get(name, "") for name in names)
    return next((int(value) for value in values if value.isdecimal() and value.isascii()), None)
