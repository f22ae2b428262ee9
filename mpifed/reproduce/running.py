"""Runs what is missing, several at a time on this machine."""

from __future__ import annotations

import concurrent.futures
import contextlib
import io
import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

from mpifed.errors import InputError, RunError, text_of
from mpifed.reproduce.study import Planned


def check_input(run: Planned) -> None:
    """Raise ``InputError`` where a run would refuse its input, such as data that are not there."""
    from mpifed.api import Request, execute
    from mpifed.mpi.communicator import Alone

    request = Request(run.experiment, run.overrides, None, dry_run=True, quiet=True)
    with contextlib.redirect_stdout(io.StringIO()):
        execute(request, Alone(), lambda: False)


def run_missing(
    runs: Sequence[Planned], processes: int, say: Callable[[str], None]
) -> dict[str, str]:
    """Run those that are not finished, and resume those that were interrupted."""
    waiting = [run for run in runs if not run.finished]
    failed: dict[str, str] = {}
    if not waiting:
        return failed
    from mpifed.training.progress import duration  # brings rich

    began = time.monotonic()

    def ended(run: Planned, reason: str, number: int) -> None:
        if reason:
            failed[str(run.directory)] = reason
        left = (time.monotonic() - began) / number * (len(waiting) - number)
        said = f"{number} of {len(waiting)}, about {duration(left)} left"
        say(f"{said}  {run.directory}  {reason or 'finished'}")

    if processes == 1:
        for number, run in enumerate(waiting, 1):
            ended(run, _run(run), number)
        return failed
    # Spawned, since threads and MPI do not survive a fork.
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(
        min(processes, len(waiting)), mp_context=context, initializer=_one_thread
    ) as pool:
        begun = {pool.submit(_run, run): run for run in waiting}
        for number, done in enumerate(concurrent.futures.as_completed(begun), 1):
            ended(begun[done], done.result(), number)
    return failed


def _one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"


def _run(run: Planned) -> str:
    """Run one; return '' or why it failed."""
    import mpifed

    overrides: dict[str, Any] = dict(run.overrides)
    try:
        mpifed.run(run.experiment, output=run.directory, resume=True, quiet=True, **overrides)
    except (InputError, RunError) as error:
        return text_of(error)
    return ""
