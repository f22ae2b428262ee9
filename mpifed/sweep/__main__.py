"""Runs every combination of lists of values, one run directory each."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from mpifed.command import Parser, carried_out, launch_words, parser_of, whole
from mpifed.config.experiments import (
    DEFAULT_EXPERIMENT,
    experiment_for_own,
    naming_line,
    parse_overrides,
    split_words,
)
from mpifed.errors import EXIT_FINISHED, InputError
from mpifed.results.run_directories import check_output
from mpifed.sweep.plan import (
    Planned,
    check_data,
    planned_runs,
    readings,
    run_words,
    write_index,
)
from mpifed.sweep.processes import Sweep
from mpifed.watchdog.launcher import check_one_process
from topologies.job_environment import outside_step


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    return carried_out("mpifed.sweep", lambda: _sweep(words))


def _sweep(words: Sequence[str] | None) -> int:
    check_one_process("give --ranks N in place of a launcher")
    options = parser().parse_intermixed_args(words)
    experiment, overrides = split_words(options.words)
    mapping = experiment_for_own(parse_overrides(overrides)) if experiment is None else None
    name = experiment or (mapping or {}).get("experiment", DEFAULT_EXPERIMENT)
    experiment = name if mapping is None else None
    output = options.output or _default_output(name)
    check_output(output)
    launcher = launch_words(options.ranks)
    keys = [word.partition("=")[0] for word in overrides]
    if options.optuna is not None:
        from mpifed.sweep.study import search  # which imports torch

        with naming_line(experiment, keys):
            return search(experiment, overrides, output, options, launcher)
    if options.metric is not None or options.no_pruning:
        raise InputError("--metric and --no-pruning go with --optuna N")
    with naming_line(experiment, keys):
        runs = planned_runs(experiment, overrides, output, options.ranks or 1)
    for line in readings(runs):
        print(line, file=sys.stderr, flush=True)
    commands = [[*launcher, *run_words(experiment, run, options.ranks)] for run in runs]
    if options.dry_run:
        for run, command in zip(runs, commands, strict=True):
            print(f"{_state(run)}: {shlex.join(command)}")
        return EXIT_FINISHED
    check_data(runs)
    write_index(runs)
    environment = outside_step() if options.ranks is not None else None
    return Sweep(runs, commands, options.jobs, environment).run()


def _default_output(experiment: str) -> Path:
    return Path("runs") / f"{Path(experiment).stem}-sweep-{datetime.now():%Y%m%d-%H%M%S}"


def _state(run: Planned) -> str:
    if run.finished():
        return "finished"
    return "to resume" if (run.directory / "config.yaml").exists() else "to run"


def parser() -> Parser:
    """Return the parser of the command."""
    command_line = parser_of("sweep", __doc__)
    command_line.add_argument(
        "words",
        nargs="+",
        metavar="[EXPERIMENT] key=value",
        help=f"as of mpifed.run; without EXPERIMENT: {DEFAULT_EXPERIMENT}",
    )
    command_line.add_argument("--output", type=Path, help="directory of the run directories")
    command_line.add_argument(
        "--ranks", type=whole(1), metavar="N", help="run each under mpirun -n N"
    )
    command_line.add_argument(
        "--jobs",
        type=whole(1),
        default=1,
        metavar="J",
        help="runs at a time, each bound to processors of its own (default 1)",
    )
    command_line.add_argument(
        "--optuna",
        type=whole(1),
        metavar="N",
        help="search ranges (local.lr=log(1e-3,1), uniform(0,1), int(1,5)) and lists in N runs, "
        "with Optuna",
    )
    command_line.add_argument(
        "--metric",
        metavar="COLUMN",
        help="column of metrics.csv that --optuna optimises (default: validation_accuracy, or "
        "validation_loss of models without accuracy)",
    )
    command_line.add_argument(
        "--no-pruning", action="store_true", help="let every run of --optuna reach its last round"
    )
    command_line.add_argument(
        "--dry-run", action="store_true", help="check all, print the commands"
    )
    return command_line


if __name__ == "__main__":
    sys.exit(main())
