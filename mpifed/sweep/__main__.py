"""Runs every combination of lists of values, one run directory each.

    python -m mpifed.sweep synthetic-fedem algorithm=[fedem,fedavg] seed=[0,1,2] rounds=100

A list gives the values of one key, one run for each; any other value is the same in all runs. For
an option whose value is a list, add a pair of brackets: model.hidden=[[64],[64,32]] makes two runs,
and model.hidden=[[64]] is the same in all runs.

    python -m mpifed.sweep flix-sine "algorithm.flix_alpha=[0,1]" "algorithm.start_from={previous}"

{previous} is replaced by the directory of the run that has the preceding value of the last list
and otherwise the same values, {first} by that of the run with its first value. The run with the
first value has no such override. A run is not started if the run that it refers to has failed.

The runs are executed one after the other, each in its own process. A repeated command skips
finished runs and resumes interrupted ones.
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from mpifed.command import Parser, program
from mpifed.config.experiment_files import DEFAULT_EXPERIMENT, split_words
from mpifed.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_FINISHED,
    EXIT_STOPPED,
    InputError,
    complain,
    text_of,
)
from mpifed.reading.results import read_metrics, read_summary
from mpifed.sweep.plan import (
    Planned,
    check_data,
    launch_words,
    plan,
    run_words,
)

IN_THEIR_PLACE = ("objective", "l2_uvp", "test_loss")
"""Columns of which the first with a number is printed for a run without an accuracy."""


def main(words: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    words : sequence of str, optional
        The arguments; those of this process by default.

    Returns
    -------
    int
        The exit code.
    """
    try:
        options = _parser().parse_intermixed_args(words)
        if not options.words:
            raise InputError(
                "the following arguments are required: EXPERIMENT | key=[value, ...]; --help shows "
                "how the command is used"
            )
        named, overrides = split_words(options.words)
        experiment = DEFAULT_EXPERIMENT if named is None else named
        if options.ranks is not None and options.ranks < 1:
            raise InputError(f"--ranks is {options.ranks}; it must be at least 1")
        output = options.output or _default_output(experiment)
        runs = plan(experiment, overrides, output, options.ranks or 1)
        launcher = launch_words(options.ranks)
        if not options.dry_run:
            check_data(experiment, runs)
    except InputError as error:
        complain("mpifed.sweep", text_of(error))
        return EXIT_BAD_INPUT
    commands = [[*launcher, *run_words(experiment, run, options.ranks)] for run in runs]
    if options.dry_run:
        for run, command in zip(runs, commands, strict=True):
            print(f"{_state(run)}: {shlex.join(command)}")
        return EXIT_FINISHED
    try:
        return execute(runs, commands)
    except KeyboardInterrupt:
        complain("mpifed.sweep", "interrupted; the same command continues")
        return EXIT_FAILED


def execute(runs: Sequence[Planned], commands: Sequence[Sequence[str]]) -> int:
    """Run what is not finished, one run after the other.

    Parameters
    ----------
    runs : sequence of Planned
        The runs, in order.
    commands : sequence of sequence of str
        The command of each run.

    Returns
    -------
    int
        0 if all are finished, 1 if any failed, 75 if one was stopped on request.
    """
    failed = 0
    # Private as the run directories in it, unless the user made it before.
    runs[0].directory.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    for number, (run, command) in enumerate(zip(runs, commands, strict=True), start=1):
        name = f"[{number}/{len(runs)}] {run.directory.name}"
        if run.finished():
            print(f"{name}: finished before, skipped", flush=True)
            continue
        missing = run.waits_for()
        if missing is not None:
            failed += 1
            said = f"not started, since {missing.name}, from which it would start, is not finished"
            print(f"{name}: {said}", file=sys.stderr, flush=True)
            continue
        print(f"{name}: started", flush=True)
        start = time.perf_counter()
        code = _run(command)
        took = f"{time.perf_counter() - start:.1f} s"
        if code == EXIT_STOPPED:
            said = f"stopped on request after {took}; the same command continues"
            print(f"{name}: {said}", flush=True)
            return EXIT_STOPPED
        if run.finished():
            print(f"{name}: finished in {took}{_result(run)}", flush=True)
        else:
            failed += 1
            how = "diverged" if _diverged(run) else f"failed with exit code {code}"
            print(f"{name}: {how} after {took}", file=sys.stderr, flush=True)
    print(f"{len(runs) - failed} of {len(runs)} runs are finished in {runs[0].directory.parent}")
    return EXIT_FAILED if failed else EXIT_FINISHED


def _run(command: Sequence[str]) -> int:
    """Return the exit code of one run; a request to stop is passed on to it."""
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL)
    handlers = {
        request: signal.signal(request, lambda *_: process.send_signal(signal.SIGUSR1))
        for request in (signal.SIGTERM, signal.SIGUSR1)
    }
    try:
        return process.wait()
    finally:
        for request, handler in handlers.items():
            signal.signal(request, handler)


def _default_output(experiment: str) -> Path:
    return Path("runs") / f"{Path(experiment).stem}-sweep-{datetime.now():%Y%m%d-%H%M%S}"


def _state(run: Planned) -> str:
    if run.finished():
        return "finished"
    return "to resume" if (run.directory / "config.yaml").exists() else "to run"


def _diverged(run: Planned) -> bool:
    with contextlib.suppress(InputError):
        return bool(read_summary(run.directory / "summary.json")["status"] == "diverged")
    return False


def _result(run: Planned) -> str:
    accuracy = read_summary(run.directory / "summary.json").get("test_accuracy")
    if isinstance(accuracy, float):
        return f", test accuracy {accuracy:.4f}"
    found = read_metrics(run.directory / "metrics.csv")
    last = dict(zip(found.columns, found.rows[-1], strict=True))
    measured = next((name for name in IN_THEIR_PLACE if last.get(name)), None)
    return f", {measured.replace('_', ' ')} {float(last[measured]):.6g}" if measured else ""


def _parser() -> Parser:
    parser = Parser(
        prog=program("sweep"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="[EXPERIMENT] key=value",
        help=f"as of mpifed.run; without EXPERIMENT: {DEFAULT_EXPERIMENT}",
    )
    parser.add_argument("--output", type=Path, help="directory of the run directories")
    parser.add_argument("--ranks", type=int, metavar="N", help="run each under mpirun -n N")
    parser.add_argument("--dry-run", action="store_true", help="check all, print the commands")
    return parser


if __name__ == "__main__":
    sys.exit(main())
