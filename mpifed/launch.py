"""The command ``python -m mpifed.run``: from its words to a request, and to its exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mpifed import __version__
from mpifed.command import Parser, program, whole
from mpifed.early_request import EarlyRequest, early_request
from mpifed.errors import EXIT_FINISHED, EXIT_STOPPED
from mpifed.printing import say
from mpifed.reporting import reporting, started
from mpifed.tracking import TRACK_VARIABLE, TRACKERS
from mpifed.watchdog.children import end_children_by
from mpifed.watchdog.exit import skip_teardown
from mpifed.watchdog.handover import release_signals
from mpifed.watchdog.heartbeat import send_to_guard, since_start, waiting
from mpifed.watchdog.launcher import launched_rank

KINDS = (
    *("experiments", "algorithms", "datasets", "models", "exchanges", "participation"),
    *("topologies", "weights", "schedules", "corrections", "compressors", "aggregators"),
    *("attacks", "surrogates"),
)


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
        "--restart",
        action="store_true",
        help="begin anew in --output; what is there of a run is moved to replaced-1 in it",
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
        "--expect-ranks", type=whole(1), metavar="N", help="stop unless MPI started exactly N ranks"
    )
    made.add_argument("--quiet", action="store_true", help="print nothing but errors")
    made.add_argument(
        "--track",
        choices=TRACKERS,
        metavar="|".join(TRACKERS),
        default=os.environ.get(TRACK_VARIABLE) or None,
        help=f"send recorded rounds there as well (default: ${TRACK_VARIABLE}, else nowhere)",
    )
    made.add_argument(
        "--on-round",
        metavar="MODULE:FUNCTION",
        help="a function of your own that rank 0 calls after each recorded round",
    )
    made.add_argument("--version", action="version", version=f"mpifed {__version__}")
    return made


def main(arguments: list[str]) -> int:
    """Run the command with the words after ``mpifed run``; return its exit code."""
    return started(lambda: _prepared(arguments))


def _prepared(arguments: list[str]) -> Callable[[], int]:
    known = _known.get(tuple(arguments))
    options = known.options if known is not None else parser().parse_intermixed_args(arguments)
    if options.list is not None:
        from mpifed.config.listing import listing

        text = listing(options.list)
        return lambda: _show(text)
    # Before the imports of torch and MPI, which take seconds in which a signal may come.
    stop_requested = _stop_on_signals()
    early = known.early if known is not None else early_request(options)
    # A mismatch is found without torch; ranks that a launcher has started import it side by side,
    # before one of them waits for another.
    is_first = options.expect_ranks is not None and launched_rank() is None
    communicator = world_of_ranks(options.expect_ranks) if is_first else None
    request = _request(options, early)
    if communicator is None:
        communicator = world_of_ranks(options.expect_ranks)
    return lambda: _run(request, communicator, stop_requested)


def _run(request: Any, communicator: Any, stop_requested: Callable[[], bool]) -> int:
    """Carry out a request; return the exit code."""

    def action() -> int:
        from mpifed.api import execute

        result = execute(request, communicator, stop_requested)
        return EXIT_STOPPED if result.status == "stopped" else EXIT_FINISHED

    return reporting(communicator, action)


def world_of_ranks(expected: int | None = None) -> Any:
    """Return the communicator of all ranks, of which there must be ``expected``."""
    with waiting():  # for the other ranks, in MPI_Init
        from mpifed.mpi.agreement import share_guard_addresses
        from mpifed.mpi.beginning import begin_mpi
        from mpifed.mpi.communicator import world

        skip_teardown()
        begin_mpi()
        communicator = world(expected)
        share_guard_addresses(communicator)
    return communicator


@dataclass(frozen=True)
class _Words:
    """What the words of a command are read as."""

    options: Any
    early: EarlyRequest


# Words that were read before this process was forked: reading them takes a rank 9 MiB.
_known: dict[tuple[str, ...], _Words] = {}


def remember_words(arguments: list[str]) -> EarlyRequest | None:
    """Read the words of a command for the ranks that are forked from this process."""
    options = parser().parse_intermixed_args(arguments)
    if options.list is not None:
        return None
    early = early_request(options)
    _known[tuple(arguments)] = _Words(options, early)
    return early


def _request(options: Any, early: EarlyRequest) -> Any:
    send_to_guard(limit=early.stall_limit)
    chosen = early.resume
    # Later than the rest, since it imports torch: a wrong word is refused at once.
    from mpifed.training.request import Request

    return Request(
        early.experiment,
        early.overrides,
        Path(options.output) if options.output is not None else None,
        Path(chosen) if isinstance(chosen, str) else chosen,
        options.dry_run,
        options.quiet,
        since_start(),
        restart=options.restart,
        on_round=options.on_round,
        track=options.track,
    )


def _stop_on_signals() -> Callable[[], bool]:
    """Return a function that says whether SIGUSR1 or SIGTERM was received."""
    came: list[int] = []
    requests = (signal.SIGUSR1, signal.SIGTERM)
    for number in requests:
        signal.signal(number, lambda received, frame: came.append(received))
    end_children_by(*requests)
    signal.signal(signal.SIGINT, _interrupt)
    release_signals()
    return lambda: bool(came)


def _interrupt(number: int, frame: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    raise KeyboardInterrupt


def _show(text: str) -> int:
    if launched_rank() in (None, 0):
        say(text)
    return EXIT_FINISHED
