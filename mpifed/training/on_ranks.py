"""A run that a Python program starts on several ranks: ``mpifed.run(..., ranks=4)``."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import subprocess
import sys
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpifed.command import MOST_RANKS, say, under_mpirun
from mpifed.components.registry import name_of
from mpifed.config.configuration import resolve
from mpifed.data.central import PASSED
from mpifed.errors import EXIT_BAD_INPUT, EXIT_FINISHED, EXIT_STOPPED, InputError, RunError
from mpifed.io.yaml_files import as_text
from mpifed.results.results import read_summary
from mpifed.tracking import check_tracker
from mpifed.training.request import Request
from topologies.job_environment import is_rank, outside_step

# Seconds that an interrupted job has to end before it is killed.
PATIENCE = 30.0

# Lines of a launcher that are repeated where no rank says why the job failed.
LAST = 8

# How a configuration names arrays of this process.
ARRAYS = (("data", "arrays"), ("data.name", "arrays"))

# How lines begin that show a recorded round, and that report a failure.
ROUND, SAYS = "round ", "mpifed: "


def check_ranks(ranks: int) -> None:
    """Refuse ranks that this process cannot start."""
    if type(ranks) is not int or not 1 <= ranks <= MOST_RANKS:
        raise InputError(f"ranks is {ranks!r}; it must be a whole number from 1 to {MOST_RANKS}")
    if is_rank():
        raise InputError(
            f"ranks is {ranks}, but this program is itself a rank of an MPI job; leave ranks out, "
            "and the run is on all ranks of the job"
        )


def run_on_ranks(
    request: Request, mapping: Mapping[str, Any], output: Path, ranks: int
) -> tuple[Path, str]:
    """Carry out a request on several ranks of this computer.

    It means the configuration ``mapping`` in the directory ``output``.
    """
    if request.track is not None:
        check_tracker(request.track)
    if request.on_round is not None and not isinstance(request.on_round, str):
        request = dataclasses.replace(request, on_round=name_of(request.on_round, "on_round"))
    check_none_own({**(request.overrides or {}), "on_round": request.on_round})
    resolve(mapping, ranks)
    code, message = _finished(_command(request, ranks, output), request)
    if code in (EXIT_FINISHED, EXIT_STOPPED):
        return output, read_summary(output / "summary.json")["status"]
    if code == EXIT_BAD_INPUT:
        raise InputError(message)
    raise RunError(message)


def check_none_own(overrides: Mapping[str, Any]) -> None:
    """Refuse what only this process has: components of the program itself, and arrays."""
    for key, value in overrides.items():
        name = value.get("name") if isinstance(value, Mapping) else value
        is_own = isinstance(name, str) and name.startswith(("__main__:", PASSED))
        if is_own or (key, name) in ARRAYS:
            raise InputError(
                f"{key} is '{name}' of this process, which ranks of their own do not have; put a "
                f"component in a file and pass {key}='file:name', save arrays with numpy.savez and "
                f"pass {key.partition('.name')[0]}='file.npz', or leave ranks out"
            )


def _command(request: Request, ranks: int, output: Path) -> list[str]:
    words = [request.experiment] if request.experiment is not None else []
    words += [f"{key}={as_text(value)}" for key, value in (request.overrides or {}).items()]
    words += ["--output", str(output), "--expect-ranks", str(ranks)]
    if request.resume:
        words += ["--resume", str(request.resume)][: 2 if isinstance(request.resume, Path) else 1]
    if request.restart:
        words.append("--restart")
    if isinstance(request.on_round, str):
        words += ["--on-round", request.on_round]
    if request.track is not None:
        words += ["--track", request.track]
    if request.quiet and not request.progress:
        words.append("--quiet")
    return under_mpirun(ranks, "run", words)


def _is_shown(request: Request, line: str) -> bool:
    """Return whether a line that the ranks print is one that the request wants."""
    if request.progress and request.quiet:
        return line.startswith(ROUND)
    has_own = request.on_round is not None and not line.startswith(SAYS)
    return not request.quiet or has_own  # what the user's function prints


def _finished(command: list[str], request: Request) -> tuple[int, str]:
    """Return the exit code of a command, and what it said of a failure."""
    paths = [path for path in sys.path if path]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env={**outside_step(), "PYTHONPATH": os.pathsep.join(paths)},
    )
    failure, last = "", deque[str](maxlen=LAST)
    try:
        for line in process.stdout or ():
            if line.startswith(SAYS):
                failure = line.removeprefix(SAYS).strip()
            if line.strip(" -\n"):
                last.append(" ".join(line.split()))
            if _is_shown(request, line):
                say(line, end="")  # also where a notebook shows what is printed
        code = process.wait()
    except BaseException:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(PATIENCE)
        process.kill()
        raise
    return code, failure or f"mpirun ended with exit code {code}; it said: {' '.join(last)}"
