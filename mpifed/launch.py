"""The command ``python -m mpifed.run``: from its words to a request, and to its exit code."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpifed import __version__
from mpifed.command import Parser, program, say, whole
from mpifed.errors import EXIT_FINISHED, EXIT_STOPPED, InputError
from mpifed.reporting import reporting, started
from mpifed.tracking import TRACK_VARIABLE, TRACKERS
from mpifed.watchdog.children import end_children_by
from mpifed.watchdog.exit import skip_teardown
from mpifed.watchdog.handover import release_signals
from mpifed.watchdog.heartbeat import send_to_guard, since_start, waiting
from mpifed.watchdog.launcher import launched_rank

# Options that have ended, with what takes their place.
RETIRED = {
    "--plan": "use --dry-run for bytes and memory; docs/slurm.md says how to learn a job's size",
}

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
    words = _known.get(tuple(arguments)) or read_words(arguments)
    if words.options.list is not None:
        from mpifed.config.listing import listing

        text = listing(words.options.list)
        return lambda: _show(text)
    # Before the imports of torch and MPI, which take seconds in which a signal may come.
    stop_requested = _stop_on_signals()
    # A mismatch is found without torch; ranks that a launcher has started import it side by side,
    # before one of them waits for another.
    expected = words.options.expect_ranks
    is_first = expected is not None and launched_rank() is None
    communicator = world_of_ranks(expected) if is_first else None
    request = _request(words)
    if communicator is None:
        communicator = world_of_ranks(expected)
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
class Words:
    """What the words of a command are read as; ``mapping`` is None where a run is resumed."""

    options: Any
    experiment: str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    resume: str | bool | None = None
    mapping: dict[str, Any] | None = None


# Words that were read before this process was forked: reading them takes a rank 9 MiB.
_known: dict[tuple[str, ...], Words] = {}


def remember_words(arguments: list[str]) -> Words:
    """Read the words of a command for the ranks that are forked from this process."""
    words = _known[tuple(arguments)] = read_words(arguments)
    return words


def read_words(arguments: list[str]) -> Words:
    """Read the words of a command, and check all names in them, without torch and MPI."""
    for word, instead in RETIRED.items():
        if word in arguments:
            raise InputError(f"{word} has ended; {instead}")
    options = parser().parse_intermixed_args(arguments)
    if options.list is not None:
        return Words(options)
    from mpifed.config.configuration import check_names
    from mpifed.config.experiments import (
        YAML_FILES,
        apply_overrides,
        parse_overrides,
        read_experiment,
        split_words,
    )

    words, resume = list(options.words), options.resume
    for name in ("output", "resume"):
        if getattr(options, name) == "":
            raise InputError(f"--{name} is empty; it must be a path")
    if isinstance(resume, str) and _is_no_path(resume):
        # ``--resume`` takes any next word for its PATH.
        words.append(resume)
        resume = True
    experiment, typed = split_words(words)
    overrides = parse_overrides(typed)
    limit = overrides.get("stall_limit")
    if isinstance(limit, (int, float)) and limit > 0:
        send_to_guard(limit=limit)  # what follows imports
    is_file = experiment is not None and experiment.endswith(YAML_FILES)
    goes_on = resume is not None or options.restart
    if goes_on or (is_file and launched_rank() is not None):
        return Words(options, experiment, overrides, resume)  # rank 0 reads files
    mapping = apply_overrides(read_experiment(experiment), overrides)
    check_names(mapping)
    return Words(options, experiment, overrides, None, mapping)


def _is_no_path(word: str) -> bool:
    """Return whether a word after ``--resume`` is meant as an override or as the experiment."""
    from mpifed.config.experiments import YAML_FILES, experiment_names

    if word.endswith(YAML_FILES):
        return True
    return not Path(word).exists() and ("=" in word or word in experiment_names())


def _request(words: Words) -> Any:
    # Later than the rest, since it imports torch: a wrong word is refused at once.
    from mpifed.training.request import Request

    options, resume = words.options, words.resume
    return Request(
        words.experiment,
        words.overrides,
        Path(options.output) if options.output is not None else None,
        Path(resume) if isinstance(resume, str) else resume,
        options.dry_run,
        options.quiet,
        since_start(),
        restart=options.restart,
        on_round=options.on_round,
        track=options.track,
        mapping=words.mapping,
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
