"""Runs every combination of lists of values, one run directory each."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from mpifed.command import Parser, carried_out, launch_words, program, whole
from mpifed.config.experiments import DEFAULT_EXPERIMENT, split_words
from mpifed.errors import EXIT_BAD_INPUT, EXIT_FAILED, EXIT_FINISHED, InputError, complain
from mpifed.results.run_directories import check_output
from mpifed.sweep.execution import execute
from mpifed.sweep.plan import Planned, check_data, plan, run_words, write_index
from mpifed.watchdog.launcher import check_one_process


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    try:
        check_one_process("give --ranks N in place of a launcher")
        options = parser().parse_intermixed_args(words)
        if not options.words:
            raise InputError(
                "the following arguments are required: EXPERIMENT | key=[value, ...]; --help shows "
                "how the command is used"
            )
        named, overrides = split_words(options.words)
        experiment = DEFAULT_EXPERIMENT if named is None else named
        output = options.output or _default_output(experiment)
        check_output(output)
        runs = plan(experiment, overrides, output, options.ranks or 1)
        launcher = launch_words(options.ranks)
        if not options.dry_run:
            check_data(experiment, runs, options.ranks or 1)
    except InputError as error:
        complain("mpifed.sweep", str(error))
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        complain("mpifed.sweep", "interrupted; nothing was begun")
        return EXIT_FAILED
    commands = [[*launcher, *run_words(experiment, run, options.ranks)] for run in runs]
    if options.dry_run:
        for run, command in zip(runs, commands, strict=True):
            print(f"{_state(run)}: {shlex.join(command)}")
        return EXIT_FINISHED
    try:
        write_index(runs)
        return execute(runs, commands, options.jobs)
    except KeyboardInterrupt:
        complain("mpifed.sweep", "interrupted; the same command continues")
        return EXIT_FAILED


def _default_output(experiment: str) -> Path:
    return Path("runs") / f"{Path(experiment).stem}-sweep-{datetime.now():%Y%m%d-%H%M%S}"


def _state(run: Planned) -> str:
    if run.finished():
        return "finished"
    return "to resume" if (run.directory / "config.yaml").exists() else "to run"


def parser() -> Parser:
    """Return the parser of the command."""
    made = Parser(
        prog=program("sweep"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "words",
        nargs="*",
        metavar="[EXPERIMENT] key=value",
        help=f"as of mpifed.run; without EXPERIMENT: {DEFAULT_EXPERIMENT}",
    )
    made.add_argument("--output", type=Path, help="directory of the run directories")
    made.add_argument("--ranks", type=whole(1), metavar="N", help="run each under mpirun -n N")
    made.add_argument(
        "--jobs",
        type=whole(1),
        default=1,
        metavar="J",
        help="runs at a time, each bound to processors of its own (default 1)",
    )
    made.add_argument("--dry-run", action="store_true", help="check all, print the commands")
    return made


if __name__ == "__main__":
    sys.exit(carried_out("mpifed.sweep", main))
