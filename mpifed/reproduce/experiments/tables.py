"""Runs what a table or a figure lacks, here or as SLURM arrays, and writes the page."""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import importlib
import io
import multiprocessing
import os
import shlex
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mpifed.config.configuration import apply_overrides, resolve, to_mapping
from mpifed.config.experiments import read_experiment
from mpifed.errors import EXIT_BAD_INPUT, InputError, RunError
from mpifed.io.yaml_files import as_text
from mpifed.reproduce.experiments import page, studies
from mpifed.reproduce.experiments.studies import Figure, PaperTable, Planned, Runs
from mpifed.results.results import read_metrics, read_summary
from mpifed.sweep.plan import check_same_run, planned_runs


@dataclass(frozen=True)
class Plan:
    """A table with the kinds of data, seeds and overrides asked for."""

    study: PaperTable
    kinds: tuple[str, ...]
    seeds: tuple[int, ...]
    changes: Mapping[str, Any]


def plan_of(study: PaperTable, options: argparse.Namespace, overrides: Mapping[str, Any]) -> Plan:
    """Return what is asked of a table, once its settings and its data have been checked."""
    changes = dict(overrides)
    seeds = changes.pop("seed", list(study.seeds))
    seeds = seeds if isinstance(seeds, list) else [seeds]
    if not seeds or not all(isinstance(each, int) and each >= 0 for each in seeds):
        raise InputError(f"seed is {seeds}; it must be a whole number, or a list of them")
    labels = {row.label for row in study.entries}
    left_out = [label for label in options.without if label in labels]
    kinds = tuple(each for each in options.data or study.data if each in study.data)
    if not kinds:
        raise InputError(f"{study.name} has no data '{options.data[0]}'")
    plan = Plan(studies.narrowed(study, changes, left_out), kinds, tuple(seeds), changes)
    with_data = not (options.dry_run or options.slurm or options.finished)
    for kind in kinds:
        _check(_runs(plan, kind, options), with_data)
    return plan


def make_table(plan: Plan, options: argparse.Namespace, command: str) -> dict[str, str]:
    """Run what a table lacks and write its page; return why runs failed, by directory."""
    failed: dict[str, str] = {}
    if options.tune and not options.finished:
        for kind in plan.kinds:
            failed |= _tune(plan, kind, options, command)
    planned = {kind: _runs(plan, kind, options) for kind in plan.kinds}
    every = [run for rows in planned.values() for runs in rows.values() for run in runs]
    if options.dry_run:
        for run in every:
            words = ["python", "-m", "mpifed.run", run.experiment, *_words(run.overrides)]
            state = "finished" if run.finished else "missing"
            print(f"{state}: {shlex.join(words)} --output {run.directory}")
        return {}
    if options.slurm:
        for rows in planned.values():
            for runs in rows.values():
                _submit(runs, options.slurm)
        return {}
    if not options.finished:
        failed |= run_missing(every, options.processes)
    parts = {}
    for kind, rows in planned.items():
        table = plan.study
        if options.finished:
            entries = (e for e in table.entries if any(run.finished for run in rows[e.label]))
            table = replace(table, entries=tuple(entries))
        values, source = studies.read_tuned(table, options.paper, kind, options.output)
        text = [page.table_text(table, page.rows_of(table, rows))]
        text += [addition(rows) for addition in table.additions]
        text.append(page.tuned_text(table, values, source))
        parts[kind] = "\n\n".join(text)
    path = options.output / f"{plan.study.name}.md"
    missing = sum(not run.finished for run in every) - len(failed)
    page.write_page(path, plan.study, plan.seeds, parts, command, failed, missing)
    print(path)
    return failed


def make_figure(study: Figure, options: argparse.Namespace) -> bool:
    """Run a figure's sweeps, then its reports; return whether one failed."""
    output = options.output / study.name
    every = () if options.finished else study.sweeps
    sweeps = [_replaced([*words, *study.common], options.words) for words in every]
    if options.slurm and not options.dry_run:
        for swept in sweeps:
            target = ["--site", options.slurm, "--output", str(output / "runs")]
            _call("mpifed.jobs", ["submit", *swept, *target])
        return False
    where = ["--jobs", str(options.processes), "--output", str(output / "runs")]
    commands = [["mpifed.sweep", *words, *where] for words in sweeps]
    commands += [
        ["mpifed.report", str(output / "runs"), *words, "--output", str(output)]
        for words in study.reports
    ]
    if sweeps and not options.dry_run:
        _foretell([_runs_of_sweep(words, output / "runs") for words in sweeps], options.processes)
    for words in commands:
        print(shlex.join(["python", "-m", *words]), flush=True)
        if not options.dry_run and _call(words[0], words[1:]):
            return True
    return False


def _replaced(words: Sequence[str], overrides: Sequence[str]) -> list[str]:
    """The words of a sweep, with a user's overrides in place of those of the same keys; the others
    are last.
    """
    users = {word.partition("=")[0]: word for word in overrides}
    replaced = [users.pop(word.partition("=")[0], word) for word in words]
    return [*replaced, *users.values()]


def _runs_of_sweep(words: Sequence[str], output: Path) -> list[Planned]:
    experiment, *others = words
    runs = planned_runs(experiment, others, output, 1)
    return [Planned(experiment, run.overrides, run.directory) for run in runs]


def run_missing(runs: Sequence[Planned], processes: int) -> dict[str, str]:
    """Run those that are not finished and resume those that were interrupted; return why some
    failed.
    """
    waiting = [run for run in runs if not run.finished]
    failed: dict[str, str] = {}
    if not waiting:
        return failed
    from mpifed.training.callbacks import duration  # brings torch

    rows: dict[Path, list[Planned]] = {}
    for run in runs:
        rows.setdefault(run.directory.parent, []).append(run)
    _foretell(list(rows.values()), processes)
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        if processes > 1:
            # Spawned, since threads and MPI do not survive a fork.
            pool = concurrent.futures.ProcessPoolExecutor(
                min(processes, len(waiting)),
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_one_thread,
            )
            stack.enter_context(pool)
            begun = {pool.submit(_run, run): run for run in waiting}
            ended = ((begun[d], d.result()) for d in concurrent.futures.as_completed(begun))
        else:
            ended = ((run, _run(run)) for run in waiting)
        for number, (run, reason) in enumerate(ended, 1):
            if reason:
                failed[str(run.directory)] = reason
            left = duration((time.monotonic() - began) / number * (len(waiting) - number))
            done = f"{number} of {len(waiting)}, about {left} left"
            print(f"{done}  {run.directory}  {reason or 'finished'}", flush=True)
    return failed


def _foretell(rows: Sequence[Sequence[Planned]], processes: int) -> None:
    """Print how many runs are missing, if any, and about how long they take."""
    from mpifed.training.callbacks import duration  # brings torch

    every = [run for of_row in rows for run in of_row]
    if missing := sum(not run.finished for run in every):
        seconds = duration(foreseen(rows, processes))
        print(f"{missing} of {len(every)} runs are missing, about {seconds}", flush=True)


def foreseen(rows: Sequence[Sequence[Planned]], processes: int) -> float:
    """Return about how many seconds the missing runs of rows, or of sweeps, take, by the runs of
    their rows that are finished, or else by two rounds of one.
    """
    total, number = 0.0, 0
    for of_row in rows:
        waiting = [run for run in of_row if not run.finished]
        ended = [run.directory for run in of_row if run.finished]
        if waiting:
            each = _seconds(ended[0])["total"] if ended else _by_two_rounds(waiting[0])
            total += len(waiting) * each
            number += len(waiting)
    return total / max(1, min(processes, number))


def _by_two_rounds(run: Planned) -> float:
    rounds = resolve(apply_overrides(read_experiment(run.experiment), run.overrides)).rounds
    with tempfile.TemporaryDirectory() as folder:
        short = replace(
            run, overrides={**run.overrides, "rounds": 2}, directory=Path(folder, "run")
        )
        # Why it fails is told where the run itself fails.
        if _run(short):
            return 0.0
        taken = _seconds(short.directory)
        clock = read_metrics(short.directory / "metrics.csv").numbers("seconds")
    # Between the first and the last row, without evaluations: what precedes round 1 is done once.
    two_rounds = clock[-1] - clock[0] - taken["evaluation"] * (len(clock) - 1) / len(clock)
    return taken["total"] + (rounds - 2) * max(0.0, float(two_rounds)) / 2


def _seconds(directory: Path) -> dict[str, float]:
    seconds: dict[str, float] = read_summary(directory / "summary.json")["seconds"]
    return seconds


def _one_thread() -> None:
    os.environ["OMP_NUM_THREADS"] = "1"


def _run(run: Planned) -> str:
    """Run one; return '' or why it failed."""
    import mpifed

    try:
        mpifed.run(run.experiment, output=run.directory, resume=True, quiet=True, **run.overrides)
    except (InputError, RunError) as error:
        return str(error)
    return ""


def _runs(plan: Plan, kind: str, options: argparse.Namespace) -> dict[str, list[Planned]]:
    tuned, _ = studies.read_tuned(plan.study, options.paper, kind, options.output)
    return studies.runs_of(plan.study, kind, options.output, plan.seeds, tuned, plan.changes)


def _check(rows: Runs, with_data: bool) -> None:
    """Validate all settings, and the data of the first run, before anything runs."""
    for number, (label, runs) in enumerate(rows.items()):
        try:
            for run in runs:
                settings = resolve(apply_overrides(read_experiment(run.experiment), run.overrides))
                if run.finished:
                    check_same_run(run.directory, to_mapping(settings))
            if with_data and number == 0 and not runs[0].finished:
                _dry_run(runs[0])
        except InputError as error:
            raise InputError(f"row '{label}': {error}") from None


def _dry_run(run: Planned) -> None:
    from mpifed.api import Request, execute
    from mpifed.mpi.communicator import Alone

    request = Request(run.experiment, run.overrides, None, dry_run=True, quiet=True)
    with contextlib.redirect_stdout(io.StringIO()):
        execute(request, Alone(), lambda: False)


def _tune(plan: Plan, kind: str, options: argparse.Namespace, command: str) -> dict[str, str]:
    """Choose values on validation data, and write those that were found."""
    trials = studies.trials_of(plan.study, kind, options.output, seed=0, changes=plan.changes)
    runs = {label: [run for _, run in tried] for label, tried in trials.items()}
    every = [run for each in runs.values() for run in each]
    if options.dry_run:
        print(f"{len(every)} runs to tune {plan.study.name} on {kind}")
        return {}
    _check(runs, with_data=True)
    failed = run_missing(every, options.processes)
    path = studies.tuned_file(options.paper, kind, options.output)
    best = {label: studies.best_values(tried) for label, tried in trials.items()}
    finished = {label: values for label, values in best.items() if values is not None}
    studies.write_tuned(path, studies.read_values(path) | finished, command)
    print(path)
    # A learning rate may be too large: that is an answer, and no failure of the study.
    return {} if len(failed) < len(every) else failed


def _submit(runs: Sequence[Planned], site: str) -> None:
    """Submit the runs of a row that are missing as one array over their seeds."""
    waiting = [run for run in runs if not run.finished]
    if not waiting:
        return
    # A list is put into a list, which sweeps take as one value.
    fixed = {
        key: [value] if isinstance(value, list) else value
        for key, value in waiting[0].overrides.items()
        if key != "seed"
    }
    seeds = [run.overrides["seed"] for run in waiting]
    target = ["--site", site, "--output", str(waiting[0].directory.parent)]
    _call(
        "mpifed.jobs",
        ["submit", waiting[0].experiment, *_words({**fixed, "seed": seeds}), *target],
    )


def _call(module: str, words: Sequence[str]) -> int:
    code: int = importlib.import_module(f"{module}.__main__").main(list(words))
    if code == EXIT_BAD_INPUT:
        raise InputError(f"python -m {module} refused {shlex.join(words)}")
    return code


def _words(overrides: Mapping[str, Any]) -> list[str]:
    return [f"{key}={as_text(value)}" for key, value in overrides.items()]
