"""Start a command of several ranks, and report its failure: one sentence, one exit code."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import socket
import sys
import time
from collections.abc import Callable
from typing import Any

from mpifed.command import discard_output
from mpifed.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_STOPPED,
    AgreedInputError,
    InputError,
    PeerFailure,
    RunError,
    StopRequested,
    complain,
    in_words,
)
from mpifed.watchdog.heartbeat import failure_reported, hosted_clients, set_failure
from mpifed.watchdog.launcher import launched_rank
from mpifed.watchdog.shared_memory import remove_segments, segments_of

# Begins the messages of a run.
NAME = "mpifed"

# Seconds that a rank waits to be ended by the rank that reports a failure.
PATIENCE = 30.0

# Delay of a rank's failure report for each rank before it, and the longest delay; seconds.
TURN, LONGEST_TURN = 0.1, 10.0


def bound_threads() -> None:
    """Bound thread pools, before numpy and torch start them; ``threads=`` raises them again."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def started(prepare: Callable[[], Callable[[], int]], command: str = NAME) -> int:
    """Prepare a command and carry it out; return its exit code."""
    bound_threads()
    if os.environ.get("MPIFED_DEBUG") == "1":
        faulthandler.enable()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A name that the terminal cannot show must not end a run that has succeeded.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        action = prepare()
    except InputError as error:
        return _fail_early(command, str(error), EXIT_BAD_INPUT)
    except SystemExit:
        raise  # after --help or --version
    except KeyboardInterrupt:
        return _fail_early(command, "interrupted", EXIT_FAILED)
    except BaseException as error:
        return _fail_early(command, in_words(error), EXIT_FAILED)
    return action()


def reporting(communicator: Any, action: Callable[[], int], command: str = NAME) -> int:
    """Return the exit code of ``action``; a failure ends the whole job with one message."""

    def fail(message: str, code: int) -> int:
        return _fail(command, communicator, message, code)

    try:
        return action()
    except AgreedInputError as error:
        if communicator.rank == 0:
            complain(command, str(error))
        return EXIT_BAD_INPUT
    except InputError as error:
        return fail(str(error), EXIT_BAD_INPUT)
    except RunError as error:
        return fail(str(error), EXIT_FAILED)
    except StopRequested as error:
        # Of this rank alone; the others still wait for it.
        return fail(str(error), EXIT_STOPPED)
    except KeyboardInterrupt:
        return fail("interrupted", EXIT_FAILED)
    except BrokenPipeError:
        discard_output()
        return fail("standard output was closed", EXIT_FAILED)
    except PeerFailure:
        # The rank that failed reports it, and its abort ends this wait.
        time.sleep(PATIENCE)
        return fail("another rank failed and did not say why", EXIT_FAILED)
    except BaseException as error:
        # A user's component may raise anything, SystemExit included.
        return fail(in_words(error), EXIT_FAILED)


def _fail_early(command: str, message: str, code: int) -> int:
    """Report a failure before ranks can communicate: on rank 0, or through this rank's guard."""
    if launched_rank() in (None, 0):
        complain(command, message)
    else:
        set_failure(message)
    return code


def _fail(command: str, communicator: Any, message: str, code: int) -> int:
    """Report a failure of this rank and end the whole job."""
    if communicator.size == 1:
        complain(command, message)
        return code
    if communicator.rank != 0:
        # A failure of several ranks is reported by the first of them; its abort ends this wait.
        time.sleep(min(LONGEST_TURN, 1.0 + TURN * communicator.rank))
    complain(
        command, f"rank {communicator.rank} on {socket.gethostname()}{hosted_clients()}: {message}"
    )
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    failure_reported(code)
    remove_segments(segments_of(os.getpid()))
    communicator.abort(code)
    return code
