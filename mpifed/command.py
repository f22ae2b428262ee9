"""The frame of every command: its parser, its name in help texts, and how it ends."""

from __future__ import annotations

import argparse
import contextlib
import errno
import os
import shutil
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NoReturn

from mpifed.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_FINISHED, InputError, RunError, complain
from topologies.command_line import Parser as Parser
from topologies.command_line import discard_output, escape_unshown, number
from topologies.command_line import say as say
from topologies.job_environment import is_rank, is_silent, outside_step

# Ranks that are started on one computer, at most, and the type of their number.
MOST_RANKS = 1024
RANKS = number(
    int, f"a whole number from 1 to {MOST_RANKS}", lambda value: 1 <= value <= MOST_RANKS
)


def parser_of(subcommand: str, description: str | None, **settings: Any) -> Parser:
    """Return the parser of a subcommand, whose description keeps its lines."""
    return Parser(
        prog=program(subcommand),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        **settings,
    )


def whole(least: int) -> Callable[[str], int]:
    """Return the ``type`` of an argument that is a whole number."""
    return number(int, f"a whole number, at least {least}", lambda value: bool(value >= least))


def launch_words(ranks: int | None) -> list[str]:
    """Return ``mpirun -n RANKS``, that of this Python's environment or of the PATH."""
    if ranks is None:
        return []
    own_mpirun = Path(sys.executable).parent / "mpirun"
    mpirun = str(own_mpirun) if own_mpirun.exists() else shutil.which("mpirun")
    if mpirun is None:
        raise InputError("--ranks needs an mpirun, and there is none on the PATH; install an MPI")
    return [mpirun, "-n", str(ranks)]


def ranks_or_auto(text: str) -> int | str:
    """Return the value of ``--ranks``, which may be ``auto``."""
    return text if text == "auto" else int(RANKS(text))


def physical_cores() -> int:
    """Return the number of physical cores that this process may use."""
    cores = set()
    for core in os.sched_getaffinity(0):
        siblings = Path(f"/sys/devices/system/cpu/cpu{core}/topology/thread_siblings_list")
        cores.add(siblings.read_text() if siblings.exists() else str(core))
    return min(len(cores), usable_cores(os.sched_getaffinity(0)))


def ranks_for(clients: Any) -> int | None:
    """Return as many ranks as there are physical cores, at most one a client; None for one."""
    cores = physical_cores()
    ranks = min(cores, clients) if isinstance(clients, int) else cores
    return ranks if ranks > 1 else None


def usable_cores(cores: Collection[int]) -> int:
    """Return how many of these cores may be used, by the quota of the container."""
    with contextlib.suppress(OSError, ValueError):  # there is none, or it is 'max'
        quota, period = map(int, Path("/sys/fs/cgroup/cpu.max").read_text("ascii").split())
        return min(len(cores), max(1, quota // period))
    return len(cores)


def become(command: list[str]) -> NoReturn:
    """Replace this process by another program, which then gets its signals."""
    sys.stdout.flush()
    # Not what an MPI that began in this process has set since, which would mislead mpirun.
    os.execve(command[0], command, outside_step())


def under_mpirun(ranks: int, subcommand: str, words: Sequence[str]) -> list[str]:
    """Return the command that starts a subcommand on several ranks of this computer."""
    return [*launch_words(ranks), *python_words(subcommand), *words]


def python_words(subcommand: str) -> list[str]:
    """Return the words that start a subcommand in a process of its own.

    As for the script ``mpifed``, a file of the working directory never stands in for a module of
    Python: ``-P`` keeps that directory from the front of the path, and ``mpifed`` appends it.
    """
    return [sys.executable, "-P", "-m", "mpifed", subcommand]


def starts_ranks(words: Sequence[str] | None = None) -> bool:
    """Return whether a command is to start ranks and is none itself."""
    return without_ranks(words) != typed(words) and not is_rank()


def typed(words: Sequence[str] | None) -> list[str]:
    """Return the words of a command; None are those that this process was started with."""
    return list(sys.argv[1:] if words is None else words)


def without_ranks(words: Sequence[str] | None) -> list[str]:
    """Return the words of a command without the option ``--ranks``."""
    others, skip = [], False
    for word in typed(words):
        if not skip and word != "--ranks" and not word.startswith("--ranks="):
            others.append(word)
        skip = word == "--ranks"
    return others


def started_as() -> str:
    """Return the text that starts ``mpifed``: its script, or Python with the package."""
    return "mpifed" if Path(sys.argv[0]).name == "mpifed" else "python -m mpifed"


def program(subcommand: str) -> str:
    """Return the text that starts a subcommand, in the form in which this process was started."""
    started = Path(sys.argv[0])
    dispatched = started.name == "mpifed" or started.parts[-2:] == ("mpifed", "__main__.py")
    return f"{started_as()} {subcommand}" if dispatched else f"python -m mpifed.{subcommand}"


def carried_out(command: str, action: Callable[[], int], *, by_all: bool = False) -> int:
    """Carry out a command; return its exit code, also where it fails.

    Of several processes that a launcher has started, the first does it, unless ``by_all``.
    """
    if is_silent() and not by_all:
        return EXIT_FINISHED
    if sys.stdout is None:  # it was closed
        sys.stdout = os.fdopen(os.open(os.devnull, os.O_WRONLY), "w")
    escape_unshown()
    try:
        try:
            for word in sys.argv[1:]:
                if any("\ud800" <= letter <= "\udfff" for letter in word):
                    raise InputError(f"{word!a} is not text in UTF-8; rename what it names")
            return action()
        finally:  # also after --help
            sys.stdout.flush()
    except BrokenPipeError:  # the reader has left
        discard_output()
    except (InputError, RunError, OSError, KeyboardInterrupt) as error:
        too_long = getattr(error, "errno", 0) == errno.ENAMETOOLONG
        message = f"'{getattr(error, 'filename', '')}' is too long for the name of a file"
        complain(command, message if too_long else str(error) or "interrupted")
        if isinstance(error, OSError):  # of standard output, say
            discard_output()
        return EXIT_BAD_INPUT if too_long or isinstance(error, InputError) else EXIT_FAILED
    return EXIT_FAILED
