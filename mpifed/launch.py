"""The command ``python -m mpifed.run``: from its words to a request, and to its exit code."""

from __future__ import annotations

import contextlib
import functools
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mpifed import __version__
from mpifed.command import (
    Parser,
    become,
    parser_of,
    ranks_for,
    ranks_or_auto,
    say,
    typed,
    under_mpirun,
    whole,
    without_ranks,
)
from mpifed.components.tables import LISTS, TABLES
from mpifed.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    AgreedInputError,
    AgreedStop,
    InputError,
    PeerFailure,
    RunError,
    StopRequested,
    complain,
    in_words,
)
from mpifed.tracking import TRACK_VARIABLE, TRACKERS
from mpifed.watchdog.guard import skip_teardown
from mpifed.watchdog.heartbeat import (
    await_forks,
    failure_reported,
    hosted_clients,
    set_failure,
    set_stall_limit,
    since_start,
    step,
    waiting,
    watched,
)
from mpifed.watchdog.launcher import launched_rank, release_signals
from mpifed.watchdog.shared_memory import remove_segments, segments_of
from topologies.job_environment import is_rank

# Begins the messages of a run.
NAME = "mpifed"

# Seconds that a rank waits to be ended by the rank that reports a failure.
PATIENCE = 30.0

# Delay of a rank's failure report for each rank before it, and the longest delay; seconds.
TURN, LONGEST_TURN = 0.1, 10.0


# What a resumed run says that is asked to stop while its data are read.
RESUMED = "stopped before the first round: nothing is written, and the next start does the same"

# What a failure ends with whose message is for the user.
CODES = {InputError: EXIT_BAD_INPUT, StopRequested: EXIT_STOPPED, RunError: EXIT_FAILED}

KINDS = ("experiments", *LISTS.values())

# Signals that ask a run to stop.
STOP_SIGNALS = (signal.SIGUSR1, signal.SIGTERM)

# What all ranks of a run import, imported once for those of a node before they are forked.
LIBRARIES = ("numpy", "torch")

RUN = ("h5py", "mpifed.api", "mpifed.training.train")


def bound_threads() -> None:
    """Bound thread pools, before numpy and torch start them; ``threads=`` raises them again."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(variable, "1")


def started(prepare: Callable[[], Callable[[], int]], command: str = NAME) -> int:
    """Prepare a command and carry it out; return its exit code."""
    bound_threads()
    gc.disable()  # what is imported holds no garbage: it takes an eighth less time
    try:
        action = prepare()
    except SystemExit:
        raise  # after --help or --version
    except BaseException as error:
        message, code = _message_and_code(error)
        if launched_rank() in (None, 0):
            complain(command, message)
        else:  # before ranks can communicate: through this rank's guard
            set_failure(message)
        return code
    finally:
        gc.enable()
    return action()


def _message_and_code(error: BaseException) -> tuple[str, int]:
    """Return the message and the exit code of a failure."""
    for kind, code in CODES.items():
        if isinstance(error, kind):
            return str(error), code
    if isinstance(error, KeyboardInterrupt):
        return "interrupted", EXIT_FAILED
    if isinstance(error, PeerFailure):
        return "another rank failed and did not say why", EXIT_FAILED
    return in_words(error), EXIT_FAILED


def reporting(communicator: Any, action: Callable[[], int], command: str = NAME) -> int:
    """Return the exit code of ``action``; a failure ends the whole job with one message."""
    try:
        return action()
    except AgreedInputError as error:
        if communicator.rank == 0:
            complain(command, str(error))
        return EXIT_BAD_INPUT
    except BaseException as error:  # a user's component may raise anything, SystemExit included
        if isinstance(error, PeerFailure):
            # The rank that failed reports it, and its abort ends this wait.
            time.sleep(PATIENCE)
        return _fail(command, communicator, *_message_and_code(error))


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


def parser() -> Parser:
    """Return the parser of the command."""
    command = parser_of(
        "run",
        "Run a federated learning experiment, alone or under mpirun.",
        epilog="Example: mpirun -n 4 python -m mpifed.run synthetic-fedem clients=300 "
        "exchange=gossip",
    )
    command.add_argument(
        "words",
        nargs="*",
        metavar="EXPERIMENT | key=value",
        help="a shipped experiment or a YAML file (default: that of data=FILE, else "
        "synthetic-fedem), and overrides with dotted keys and YAML values",
    )
    command.add_argument("--output", metavar="DIR", help="default: runs/<experiment>-<timestamp>")
    command.add_argument(
        "--resume",
        nargs="?",
        const=True,
        metavar="PATH",
        help="continue from a checkpoint; without PATH from the newest intact one of --output",
    )
    command.add_argument(
        "--restart",
        action="store_true",
        help="begin anew in --output; what is there of a run is moved to replaced-1 in it",
    )
    command.add_argument(
        "--dry-run", action="store_true", help="check and show the plan; train nothing"
    )
    command.add_argument(
        "--list",
        nargs="?",
        const="all",
        metavar="KIND | NAME",
        help=f"what can be named ({', '.join(KINDS)}), or the options of one component or section",
    )
    command.add_argument(
        "--ranks",
        type=ranks_or_auto,
        metavar="N | auto",
        help="start mpirun -n N; auto is as many ranks as this computer has cores, at most one a "
        "client; digests do not change",
    )
    command.add_argument(
        "--expect-ranks", type=whole(1), metavar="N", help="stop unless MPI started exactly N ranks"
    )
    command.add_argument(
        "--json", action="store_true", help="--list or --dry-run as one line of JSON, for programs"
    )
    command.add_argument("--quiet", action="store_true", help="print nothing but errors")
    command.add_argument(
        "--track",
        choices=TRACKERS,
        metavar="|".join(TRACKERS),
        default=os.environ.get(TRACK_VARIABLE) or None,
        help=f"send recorded rounds there as well (default: ${TRACK_VARIABLE}, else nowhere)",
    )
    command.add_argument(
        "--on-round",
        metavar="MODULE:FUNCTION",
        help="a function of your own that rank 0 calls after each recorded round",
    )
    command.add_argument("--version", action="version", version=f"mpifed {__version__}")
    return command


def main(arguments: list[str] | None = None) -> int:
    """Run the command with the words after ``mpifed run``; return its exit code."""
    with _requests_to_stop() as stop_requested:
        return started(lambda: _prepared(arguments, stop_requested))


def _prepared(arguments: list[str] | None, stop_requested: Callable[[], bool]) -> Callable[[], int]:
    words = read_words(arguments)
    if words.options.list is not None:
        from mpifed.config.listing import listed_records, listing

        word = words.options.list
        text = (
            json.dumps(listed_records(word), default=str) if words.options.json else listing(word)
        )
        return lambda: _show(text)
    if words.options.json and not words.options.dry_run:
        raise InputError("--json goes with --list or --dry-run; a run writes summary.json")
    ranks = _ranks_to_start(words)
    if ranks is not None:
        options = ["--expect-ranks", str(words.options.expect_ranks or ranks)]
        command = under_mpirun(ranks, "run", [*without_ranks(arguments), *options])
        return lambda: become(command)
    # A mismatch is found without torch; ranks that a launcher has started import it side by side,
    # before one of them waits for another.
    expected = words.options.expect_ranks
    first = world_of_ranks(expected) if expected and launched_rank() is None else None
    request = _request(words)
    communicator = first or world_of_ranks(expected)
    return lambda: _run(request, communicator, stop_requested)


def _ranks_to_start(words: Words) -> int | None:
    """Return on how many ranks a launcher is to start the run; None where this process runs it."""
    ranks = words.options.ranks
    if ranks is None or (ranks == "auto" and is_rank()):
        return None
    if is_rank():
        raise InputError(
            f"--ranks is {ranks}, but this process is itself a rank of a job; leave --ranks out"
        )
    if ranks != "auto":
        return int(ranks)
    return ranks_for(_named_in(words).get("clients"))


def _run(request: Any, communicator: Any, stop_requested: Callable[[], bool]) -> int:
    """Carry out a request; return the exit code."""

    def action() -> int:
        from mpifed.api import execute

        try:
            result = execute(request, communicator, stop_requested)
        except AgreedStop as stopped:
            if communicator.rank == 0 and not request.quiet:
                say(RESUMED if request.resume else str(stopped))
            return EXIT_STOPPED
        return EXIT_STOPPED if result.status == "stopped" else EXIT_FINISHED

    return reporting(communicator, action)


def world_of_ranks(expected: int | None = None) -> Any:
    """Return the communicator of all ranks, of which there must be ``expected``."""
    with waiting():  # for the other ranks, in MPI_Init
        from mpifed.mpi.agreement import share_leader
        from mpifed.mpi.communicator import begin_mpi, check_launcher, world

        skip_teardown()
        await_forks()
        check_launcher()
        begin_mpi()
        communicator = world(expected)
        share_leader(communicator)
    return communicator


@dataclass(frozen=True)
class Words:
    """What the words of a command are read as."""

    options: Any
    experiment: str | None = None
    overrides: dict[str, Any] = field(default_factory=dict)
    resume: str | bool | None = None


# What was read before this rank was forked, by the words.
_read_before: dict[tuple[str, ...], Words] = {}


def read_words(arguments: list[str] | None) -> Words:
    """Read the words of a command; what they name is looked up later, by rank 0."""
    words = _read_before.pop((*typed(arguments),), None) or _read(arguments)
    limit = words.overrides.get("stall_limit")
    if isinstance(limit, (int, float)) and limit > 0:
        set_stall_limit(limit)  # what follows imports
    return words


def _read(arguments: list[str] | None) -> Words:
    options = parser().parse_intermixed_args(arguments)
    if options.list is not None:
        return Words(options)
    from mpifed.config.experiments import parse_overrides, split_words

    words, resume = list(options.words), options.resume
    for name in ("output", "resume"):
        if getattr(options, name) == "":
            raise InputError(f"--{name} is empty; it must be a path")
    if isinstance(resume, str) and _is_no_path(resume):
        # ``--resume`` takes any next word for its PATH.
        words.append(resume)
        resume = True
    experiment, assignments = split_words(words)
    return Words(options, experiment, parse_overrides(assignments), resume)


def _named_in(words: Words) -> Mapping[str, Any]:
    """Return the sections of the experiment, in which overrides have replaced whole ones."""
    from mpifed.config.experiments import read_experiment

    if (words.resume or words.options.restart) and words.experiment is None:
        return words.overrides
    return {**read_experiment(words.experiment, words.overrides), **words.overrides}


def _is_no_path(word: str) -> bool:
    """Return whether a word after ``--resume`` is meant as an override or as the experiment."""
    from mpifed.config.experiments import YAML_FILES, experiment_names

    is_word = not os.path.exists(word) and ("=" in word or word in experiment_names())
    return is_word or word.endswith(YAML_FILES)


def _request(words: Words) -> Any:
    # Later than the rest: --help, lists and bad syntax need no torch.
    _import(LIBRARIES)
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
        json=options.json,
        on_round=options.on_round,
        track=options.track,
    )


@functools.cache
def _hold_stop_signals_at_forks() -> None:
    """Hold signals back during forks: Python forgets in a child those that come meanwhile."""
    masks: list[Any] = []

    def hold() -> None:
        masks.append(signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS))

    def release() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.pop())

    os.register_at_fork(before=hold, after_in_parent=release, after_in_child=release)


@contextlib.contextmanager
def _requests_to_stop() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether SIGUSR1, SIGTERM or SIGINT was received.

    The first SIGINT asks the run to stop, and the second ends it.
    """
    process, received = os.getpid(), list[int]()

    def note(number: int, frame: Any) -> None:
        if os.getpid() != process:  # a component has forked it: it ends as any other process does
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        received.append(number)

    def interrupt(number: int, frame: Any) -> None:
        if number in received:
            signal.signal(number, signal.SIG_IGN)
            raise KeyboardInterrupt
        received.append(number)

    handlers = {**dict.fromkeys(STOP_SIGNALS, note), signal.SIGINT: interrupt}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    _hold_stop_signals_at_forks()
    if watched():
        release_signals()
    try:
        yield lambda: bool(received)
    finally:
        if not watched():  # the process of a rank ends now, with its exit code
            for number, handler in before.items():
                signal.signal(number, handler)


def _show(text: str) -> int:
    if launched_rank() in (None, 0):
        say(text)
    return EXIT_FINISHED


def preload(words: list[str] | None = None) -> None:
    """Import what ``mpifed run`` needs with these words."""
    bound_threads()
    gc.disable()  # as in ``started``, which enables it again in the ranks
    if {"-h", "--help", "--version"} & {*typed(words)}:
        return  # which is printed by rank 0
    parsed = read_words(words)
    _read_before[*typed(words),] = parsed
    if parsed.options.list is not None:
        return
    _import(LIBRARIES)
    from mpifed.mpi.communicator import import_mpi

    with contextlib.suppress(ImportError, RuntimeError):  # no MPI: one rank runs without
        import_mpi()
        _import(("mpifed.mpi.over_mpi4py",))
    _import(RUN)
    sys.modules["threadpoolctl"].threadpool_info()  # it remembers where libraries are
    _import_components(_named_in(parsed))


def _import(modules: Iterable[str]) -> None:
    for name in modules:
        importlib.import_module(name)
        step()


def _import_components(mapping: Mapping[str, Any]) -> None:
    """Import the shipped components that a configuration names, and read their options."""
    from mpifed.components.registry import find, named
    from mpifed.config.experiments import DEFAULTS
    from topologies.parameters import options_of

    for section in DEFAULTS.keys() & mapping.keys():
        name, _ = named(mapping[section], section, DEFAULTS[section])
        if name in TABLES[section]:
            options_of(find(section, name))
