"""The command ``python -m mpifed.run``: parses its arguments, reports failures in one sentence."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mpifed import __version__
from mpifed.command import Parser, program
from mpifed.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    AgreedInputError,
    InputError,
    PeerFailure,
    RunError,
    StopRequested,
    complain,
    in_words,
    text_of,
)
from mpifed.supervision.exit import skip_teardown
from mpifed.supervision.handover import release_signals
from mpifed.supervision.heartbeat import (
    announce_orderly_end,
    hosted_clients,
    send_to_guard,
    waiting,
    watched,
)
from mpifed.supervision.heartbeat import began as rank_began
from mpifed.supervision.launcher import launched_rank, started_at
from mpifed.supervision.shared_memory import remove_segments, segments_of

KINDS = (
    *("experiments", "algorithms", "datasets", "models", "exchanges", "participation"),
    *("topologies", "weights", "schedules", "compressors", "surrogates"),
)

PATIENCE = 30.0
"""Seconds that a rank waits to be ended by the rank that reports a failure."""

TURN, LONGEST_TURN = 0.1, 10.0
"""Delay of a rank's failure report for each rank before it, and the longest delay; seconds."""


def parser() -> Parser:
    """Return the parser of the command."""
    made = Parser(
        prog=program("run"),
        description="Run a federated learning experiment, alone or under mpirun.",
        epilog="Example: mpirun -n 4 python -m mpifed.run synthetic-fedem clients=300 "
        "exchange=gossip",
        allow_abbrev=False,
    )
    made.add_argument(
        "words",
        nargs="*",
        metavar="EXPERIMENT | key=value",
        help="a shipped experiment or a YAML file (default: synthetic-fedem), and overrides with "
        "dotted keys and YAML values",
    )
    made.add_argument("--output", metavar="DIR", help="default: runs/<experiment>-<timestamp>")
    made.add_argument(
        "--resume",
        nargs="?",
        const=True,
        metavar="PATH",
        help="continue from a checkpoint; without PATH from the newest intact one of --output",
    )
    made.add_argument(
        "--dry-run", action="store_true", help="check and show the plan; train nothing"
    )
    made.add_argument(
        "--list",
        nargs="?",
        const="all",
        metavar="KIND | NAME",
        help=f"what can be named ({', '.join(KINDS)}), or the options of one component or section",
    )
    made.add_argument(
        "--expect-ranks", type=int, metavar="N", help="stop unless MPI started exactly N ranks"
    )
    made.add_argument("--quiet", action="store_true", help="print nothing but errors")
    made.add_argument("--version", action="version", version=f"mpifed {__version__}")
    return made


def bound_threads() -> None:
    """Bound thread pools, before numpy and torch start them; ``threads=`` raises them again."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def main(arguments: list[str]) -> int:
    """Run the command with the words after ``mpifed run``; return its exit code."""
    bound_threads()
    if os.environ.get("MPIFED_DEBUG") == "1":
        faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal cannot show must not end a run that has succeeded.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        options = parser().parse_intermixed_args(arguments)
        if options.list:
            return _list(options.list)
        # Before the imports of torch and MPI, which take seconds in which a signal may come.
        stop_requested = _stop_on_signals()
        request = _request(options)
        communicator = _world(options.expect_ranks)
    except InputError as error:
        return _fail_early(text_of(error), EXIT_BAD_INPUT)
    except SystemExit:
        raise  # after --help or --version
    except KeyboardInterrupt:
        return _fail_early("interrupted", EXIT_FAILED)
    except BaseException as error:
        return _fail_early(_foreign(error), EXIT_FAILED)
    return _run(request, communicator, stop_requested)


def _run(request: Any, communicator: Any, stop_requested: Callable[[], bool]) -> int:
    """Carry out a request; every failure ends the whole job with one message."""
    try:
        from mpifed.api import execute

        result = execute(request, communicator, stop_requested)
    except AgreedInputError as error:
        if communicator.rank == 0:
            _say(text_of(error))
        return EXIT_BAD_INPUT
    except InputError as error:
        return _fail(communicator, text_of(error), EXIT_BAD_INPUT)
    except RunError as error:
        return _fail(communicator, text_of(error), EXIT_FAILED)
    except StopRequested as error:
        # Of this rank alone; the others still wait for it.
        return _fail(communicator, text_of(error), EXIT_STOPPED)
    except KeyboardInterrupt:
        return _fail(communicator, "interrupted", EXIT_FAILED)
    except BrokenPipeError:
        # The reader of the output is gone; Python would report that once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _fail(communicator, "standard output was closed", EXIT_FAILED)
    except PeerFailure:
        # The rank that failed reports it, and its abort ends this wait.
        time.sleep(PATIENCE)
        return _fail(communicator, "another rank failed and did not say why", EXIT_FAILED)
    except BaseException as error:
        # A user's component may raise anything, SystemExit included.
        return _fail(communicator, _foreign(error), EXIT_FAILED)
    return EXIT_STOPPED if result.status == "stopped" else EXIT_FINISHED


def _foreign(error: BaseException) -> str:
    return f"{in_words(error)} (MPIFED_DEBUG=1 shows the traceback)"


def _world(expected: int | None) -> Any:
    with waiting():  # for the other ranks, in MPI_Init
        from mpifed.mpi.agreement import share_guard_addresses
        from mpifed.mpi.communicator import world

        skip_teardown()
        communicator = world(expected)
        share_guard_addresses(communicator)
    return communicator


def early_request(options: Any) -> tuple[str | None, dict[str, Any], Any]:
    """Check what ``parser`` returns as far as that needs neither torch nor data.

    Returns
    -------
    tuple
        The experiment, overrides by dotted key, and the value of ``--resume``.
    """
    from mpifed.config.early import check_early, written_stall_limit
    from mpifed.config.experiment_files import parse_overrides, split_words

    words, chosen = list(options.words), options.resume
    for name in ("output", "resume"):
        if getattr(options, name) == "":
            raise InputError(f"--{name} is empty; it must be a path")
    if isinstance(chosen, str) and _is_no_path(chosen):
        # ``--resume`` takes any next word for its PATH.
        words.append(chosen)
        chosen = True
    experiment, typed = split_words(words)
    overrides = parse_overrides(typed)
    send_to_guard(limit=written_stall_limit(experiment, overrides))
    if chosen is None:
        check_early(experiment, overrides)
    return experiment, overrides, chosen


def _request(options: Any) -> Any:
    experiment, overrides, chosen = early_request(options)
    # Later than the rest, since it imports torch: a wrong word is refused at once.
    from mpifed.training.request import Request

    return Request(
        experiment,
        overrides,
        Path(options.output) if options.output is not None else None,
        Path(chosen) if isinstance(chosen, str) else chosen,
        options.dry_run,
        options.quiet,
        _since_start(),
    )


def _is_no_path(word: str) -> bool:
    """Return whether a word after ``--resume`` is meant as an override or as the experiment."""
    from mpifed.config.experiment_files import YAML_FILES, experiment_names

    if word.endswith(YAML_FILES):
        return True
    return not Path(word).exists() and ("=" in word or word in experiment_names())


def _stop_on_signals() -> Callable[[], bool]:
    """Return a function that says whether SIGUSR1 or SIGTERM was received.

    The run then stops after its round, before round 1 at once. A second SIGINT is ignored.
    """
    came: list[int] = []
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda received, frame: came.append(received))
    signal.signal(signal.SIGINT, _interrupt)
    release_signals()
    return lambda: bool(came)


def _interrupt(number: int, frame: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _since_start() -> float:
    """Return wall seconds since the launcher started this rank; CPU seconds if unknown."""
    began = rank_began() if watched() else started_at()
    if began < 0 or not hasattr(time, "CLOCK_BOOTTIME"):
        return time.process_time()
    return time.clock_gettime(time.CLOCK_BOOTTIME) - began


def _say(message: str) -> None:
    if os.environ.get("MPIFED_DEBUG") == "1" and sys.exc_info()[0] is not None:
        traceback.print_exc()
    complain("mpifed", message)


def _fail_early(message: str, code: int) -> int:
    """Report a failure before ranks can communicate: on rank 0, or through this rank's guard."""
    if launched_rank() in (None, 0):
        _say(message)
    else:
        send_to_guard(failure=message)
    return code


def _fail(communicator: Any, message: str, code: int) -> int:
    """Report a failure of this rank and end the whole job."""
    if communicator.size == 1:
        _say(message)
        return code
    if communicator.rank != 0:
        # A failure of several ranks is reported by the first of them; its abort ends this wait.
        time.sleep(min(LONGEST_TURN, 1.0 + TURN * communicator.rank))
    _say(f"rank {communicator.rank} on {socket.gethostname()}{hosted_clients()}: {message}")
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    announce_orderly_end()
    remove_segments(segments_of(os.getpid()))
    communicator.abort(code)
    return code


def _list(word: str) -> int:
    from mpifed.config.catalogue import listing

    text = listing(word)
    if launched_rank() in (None, 0):
        print(text, flush=True)
    return EXIT_FINISHED
