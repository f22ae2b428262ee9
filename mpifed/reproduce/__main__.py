"""Tables and figures of the papers: runs what is missing, and writes pages.

    python -m mpifed.reproduce fedem --list
    python -m mpifed.reproduce fedem --table 2 --output reproduced
    python -m mpifed.reproduce fedem --study recovery seed=[0,1,2]
    python -m mpifed.reproduce fedem --table 2 --tune --data released
    python -m mpifed.reproduce fedem --table 2 --slurm SITE
    python -m mpifed.reproduce flix --figure 2

Without --table, --figure or --study it is all of a paper. Runs are in OUTPUT/STUDY/..., the pages
in OUTPUT/STUDY.md. The same command continues after an interruption, and skips what is finished.
Words key=value are overrides for all runs, as rounds=20 to try a study out; seed=[0,1] sets the
seeds. --tune first chooses learning rates and penalties on validation data, over the paper's grids,
and writes OUTPUT/tuned-PAPER-DATA.yaml, which later runs there use; mpifed comes with such files.
--slurm submits the runs as arrays of jobs instead; the same command without it, once they are
finished, writes the page. --finished writes it from those that are finished, and runs nothing.
"""

from __future__ import annotations

import argparse
import importlib
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mpifed.command import Parser, program
from mpifed.config.configuration import resolve, to_mapping
from mpifed.config.experiment_files import apply_overrides, parse_overrides, read_experiment
from mpifed.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_FINISHED,
    InputError,
    closest,
    complain,
    text_of,
)
from mpifed.jobs.printing import say
from mpifed.reading.yaml_files import as_text
from mpifed.reproduce import page, tuning
from mpifed.reproduce.running import check_input, run_missing
from mpifed.reproduce.study import (
    Figure,
    Planned,
    Study,
    Table,
    having_runs,
    leaving_out,
    overridden,
    runs_of,
)
from mpifed.sweep.plan import check_same_run

PAPERS = ("fedem", "flix", "fedmm")


def main(words: Sequence[str] | None = None) -> int:
    """Run the command.

    Parameters
    ----------
    words : sequence of str, optional
        The arguments; those of this process by default.

    Returns
    -------
    int
        The exit code: 0, 1 if a run failed, 2 for bad input.
    """
    given = list(sys.argv[1:] if words is None else words)
    try:
        options = _parser().parse_intermixed_args(given)
        known: dict[str, Study] = studies(options.paper)
        if options.list:
            width = max(map(len, known))
            print("\n".join(f"{name:<{width}}  {study.title}" for name, study in known.items()))
            return EXIT_FINISHED
        chosen = _chosen(options, known)
        overrides = parse_overrides(options.words)
        for name, study in chosen.items():
            given_more = overrides or options.tune or options.data or options.without
            if isinstance(study, Figure) and given_more:
                raise InputError(
                    f"{name} is a figure made of sweeps, which take no overrides, --data, "
                    "--without or --tune; python -m mpifed.sweep runs its sweeps with others"
                )
        command = shlex.join(["python", "-m", "mpifed.reproduce", *given])
        failed = False
        for study in chosen.values():
            if isinstance(study, Table):
                failed |= bool(_table(study, options, dict(overrides), command))
            else:
                failed |= bool(_figure(study, options))
        return EXIT_FAILED if failed else EXIT_FINISHED
    except InputError as error:
        complain("mpifed.reproduce", text_of(error))
        return EXIT_BAD_INPUT


def studies(paper: str) -> dict[str, Study]:
    """Return the tables and figures of a paper, by name."""
    found: dict[str, Study] = importlib.import_module(f"mpifed.reproduce.{paper}").STUDIES
    return found


def _chosen(options: argparse.Namespace, known: Mapping[str, Study]) -> dict[str, Study]:
    wanted = [f"table-{each}" for each in options.table]
    wanted += [f"figure-{each}" for each in options.figure] + options.study
    found: dict[str, Study] = {}
    for name in wanted:
        # Figure 1 has two parts, each a study.
        having = {k: v for k, v in known.items() if k == name or k.startswith(f"{name}-")}
        if not having:
            raise InputError(f"{options.paper} has no {name}; {closest(name, known)}")
        found |= having
    return found or dict(known)


def _table(
    study: Table, options: argparse.Namespace, more: dict[str, Any], command: str
) -> dict[str, str]:
    """Run what a table lacks and write its page; return the runs that failed."""
    seeds = _seeds(more.pop("seed", list(study.seeds)))
    study = leaving_out(overridden(study, more), options.without)
    variants = options.data or list(study.variants)
    for variant in variants:
        if variant not in study.variants:
            raise InputError(
                f"--data is '{variant}', which {study.name} does not have; "
                f"{closest(variant, study.variants)}"
            )
    failed: dict[str, str] = {}
    if options.tune and not options.finished:
        for variant in variants:
            failed |= _tune(study, variant, options, more, command)
    planned, values = {}, {}
    for variant in variants:
        tuned = tuning.read_tuned(options.paper, variant, options.output)
        values[variant] = tuned
        planned[variant] = runs_of(study, variant, options.output, seeds, tuned, more)
        _check(planned[variant], with_data=not (options.dry_run or options.slurm))
    every = [run for rows in planned.values() for runs in rows.values() for run in runs]
    if options.dry_run:
        for run in every:
            state = "finished" if run.finished else "missing"
            say(f"{state}: {shlex.join(_words(run))} --output {run.directory}")
        return {}
    if options.slurm:
        for rows in planned.values():
            for runs in rows.values():
                _submit(runs, options.slurm)
        return {}
    if not options.finished:
        failed |= run_missing(every, options.processes, lambda line: print(line, flush=True))
    parts = {}
    for variant, rows in planned.items():
        shown = having_runs(study, rows) if options.finished else study
        source = tuning.source_of(options.paper, variant, options.output)[0]
        text = [page.table_text(shown, page.rows_of(shown, rows))]
        text += [extra(rows) for extra in study.extras]
        parts[variant] = "\n\n".join([*text, page.tuned_text(shown, values[variant], source)])
    path = options.output / f"{study.name}.md"
    missing = sum(not run.finished for run in every) - len(failed)
    page.write_page(path, study, seeds, parts, command, failed, missing)
    print(path)
    return failed


def _check(rows: Mapping[str, Sequence[Planned]], with_data: bool) -> None:
    """Refuse what is wrong before anything runs: all settings, and the data of the first run."""
    for number, (label, runs) in enumerate(rows.items()):
        try:
            for run in runs:
                asked = resolve(apply_overrides(read_experiment(run.experiment), run.overrides))
                if run.finished:
                    check_same_run(run.directory, to_mapping(asked))
            if with_data and number == 0 and not runs[0].finished:
                check_input(runs[0])
        except InputError as error:
            raise InputError(f"row '{label}': {text_of(error)}") from None


def _tune(
    study: Table, variant: str, options: argparse.Namespace, more: dict[str, Any], command: str
) -> dict[str, str]:
    trials = tuning.trials_of(study, variant, options.output, seed=0, more=more)
    every = [run for tried in trials.values() for _, run in tried]
    if options.dry_run:
        print(f"{len(every)} runs to tune {study.name} on {variant}")
        return {}
    _check({label: [run for _, run in tried] for label, tried in trials.items()}, with_data=True)
    failed = run_missing(every, options.processes, lambda line: print(line, flush=True))
    path = options.output / f"tuned-{options.paper}-{variant}.yaml"
    values = tuning.read_tuned(options.paper, variant, options.output)
    for label, tried in trials.items():
        best = tuning.chosen(tried)
        if best is not None:
            values[label] = best
    tuning.write_tuned(path, values, command)
    print(path)
    # A learning rate may be too large: that is an answer, and no failure of the study.
    return {} if len(failed) < len(every) else failed


def _figure(study: Figure, options: argparse.Namespace) -> bool:
    """Run a figure's sweeps, then its reports; return whether one failed."""
    output = options.output / study.name
    commands = [
        *(["mpifed.sweep", *words, "--output", str(output / "runs")] for words in study.sweeps),
        *(
            ["mpifed.report", str(output / "runs"), *words, "--output", str(output)]
            for words in study.reports
        ),
    ]
    if options.dry_run:
        for words in commands:
            say(shlex.join(["python", "-m", *words]))
        return False
    if options.slurm:
        for swept in study.sweeps:
            place = ["--site", options.slurm, "--output", str(output / "runs")]
            _call("mpifed.jobs", ["submit", *swept, *place])
        return False
    for module, *rest in commands:
        print(shlex.join(["python", "-m", module, *rest]), flush=True)
        if _call(module, rest):
            return True
    return False


def _submit(runs: Sequence[Planned], site: str) -> None:
    """Submit the runs of a row that are missing as one array over their seeds."""
    waiting = [run for run in runs if not run.finished]
    if not waiting:
        return
    seeds = [run.overrides["seed"] for run in waiting]
    fixed = {key: value for key, value in waiting[0].overrides.items() if key != "seed"}
    words = [waiting[0].experiment, *_settings(fixed), f"seed={as_text(seeds)}"]
    place = waiting[0].directory.parent
    _call("mpifed.jobs", ["submit", *words, "--site", site, "--output", str(place)])


def _call(module: str, words: Sequence[str]) -> int:
    code: int = importlib.import_module(f"{module}.__main__").main(list(words))
    if code == EXIT_BAD_INPUT:
        raise InputError(f"python -m {module} refused {shlex.join(words)}")
    return code


def _words(run: Planned) -> list[str]:
    settings = [f"{key}={as_text(value)}" for key, value in run.overrides.items()]
    return ["python", "-m", "mpifed.run", run.experiment, *settings]


def _settings(overrides: Mapping[str, Any]) -> list[str]:
    """Overrides as words of a sweep. A list is put into a list, which sweeps take as one value."""
    return [
        f"{key}={as_text([value] if isinstance(value, list) else value)}"
        for key, value in overrides.items()
    ]


def _seeds(given: Any) -> list[int]:
    seeds = given if isinstance(given, list) else [given]
    if not seeds or not all(isinstance(each, int) and each >= 0 for each in seeds):
        raise InputError(f"seed is {given}; it must be a whole number, or a list of them")
    return seeds


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog=program("reproduce"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("paper", choices=PAPERS, help="whose tables and figures")
    parser.add_argument("words", nargs="*", metavar="key=value", help="overrides for all runs")
    parser.add_argument("--list", action="store_true", help="show names and titles")
    parser.add_argument("--table", action="append", default=[], metavar="N", help="a table")
    parser.add_argument("--figure", action="append", default=[], metavar="N", help="a figure")
    parser.add_argument("--study", action="append", default=[], metavar="NAME", help="by its name")
    parser.add_argument(
        "--data", action="append", default=[], metavar="KIND", help="on this kind of data alone"
    )
    parser.add_argument(
        "--without", action="append", default=[], metavar="ROW", help="leave out a row of tables"
    )
    parser.add_argument("--tune", action="store_true", help="choose learning rates first")
    parser.add_argument("--slurm", metavar="SITE", help="submit the runs as SLURM arrays")
    parser.add_argument(
        "--finished", action="store_true", help="run nothing: pages of what is finished"
    )
    parser.add_argument("--dry-run", action="store_true", help="show what would be run")
    parser.add_argument(
        "--processes",
        type=int,
        default=len(os.sched_getaffinity(0)),
        metavar="N",
        help="runs at once (default: cores)",
    )
    parser.add_argument(
        "--output", type=Path, default=Path("reproduced"), metavar="DIR", help="default: reproduced"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
