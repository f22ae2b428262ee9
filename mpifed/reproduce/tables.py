"""Runs what a table lacks, chooses values where that is asked for, and writes the page."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mpifed.command import say
from mpifed.config.configuration import check_names, resolve, to_mapping
from mpifed.config.experiments import apply_overrides, read_experiment
from mpifed.errors import InputError, text_of
from mpifed.io.yaml_files import as_text
from mpifed.reproduce import page, tuning
from mpifed.reproduce.commands import submit
from mpifed.reproduce.running import check_input, run_missing
from mpifed.reproduce.study import (
    Planned,
    Table,
    having_runs,
    leaving_out,
    overridden,
    runs_of,
)
from mpifed.sweep.plan import check_same_run


@dataclass(frozen=True)
class Plan:
    """What is asked of a table."""

    study: Table
    variants: tuple[str, ...]
    seeds: tuple[int, ...]
    more: Mapping[str, Any]


def plan_of(study: Table, options: argparse.Namespace, overrides: Mapping[str, Any]) -> Plan:
    """Return what is asked of a table, once its settings and its data have been checked."""
    more = dict(overrides)
    seeds = _seeds(more.pop("seed", list(study.seeds)))
    labels = {row.label for row in study.entries}
    left_out = [label for label in options.without if label in labels]
    variants = [each for each in options.data or study.variants if each in study.variants]
    if not variants:
        raise InputError(f"{study.name} has no data '{options.data[0]}'")
    plan = Plan(leaving_out(overridden(study, more), left_out), tuple(variants), seeds, more)
    with_data = not (options.dry_run or options.slurm or options.finished)
    every = [_runs(plan, variant, options) for variant in variants]
    _check_words(every[0])
    for rows in every:
        _check(rows, with_data)
    return plan


def make_table(plan: Plan, options: argparse.Namespace, command: str) -> dict[str, str]:
    """Run what a table lacks and write its page."""
    study = plan.study
    failed: dict[str, str] = {}
    if options.tune and not options.finished:
        for variant in plan.variants:
            failed |= _tune(plan, variant, options, command)
    planned = {variant: _runs(plan, variant, options) for variant in plan.variants}
    for rows in planned.values():
        _check(rows, with_data=False)
    every = [run for rows in planned.values() for runs in rows.values() for run in runs]
    if options.dry_run:
        for run in every:
            state = "finished" if run.finished else "missing"
            say(f"{state}: {shlex.join(_words(run))} --output {run.directory}")
        return {}
    if options.slurm:
        for rows in planned.values():
            for runs in rows.values():
                submit(runs, options.slurm)
        return {}
    if not options.finished:
        failed |= run_missing(every, options.processes, _tell)
    parts = {}
    for variant, rows in planned.items():
        shown = having_runs(study, rows) if options.finished else study
        values = tuning.read_tuned(options.paper, variant, options.output)
        text = [page.table_text(shown, page.rows_of(shown, rows))]
        text += [extra(rows) for extra in study.extras]
        sources = tuning.sources_of(shown, options.paper, variant, options.output)
        text.append(page.tuned_text(shown, values, " and ".join(sources)))
        parts[variant] = "\n\n".join(text)
    path = options.output / f"{study.name}.md"
    missing = sum(not run.finished for run in every) - len(failed)
    page.write_page(path, study, plan.seeds, parts, command, failed, missing)
    print(path)
    return failed


def _runs(plan: Plan, variant: str, options: argparse.Namespace) -> dict[str, list[Planned]]:
    tuned = tuning.read_tuned(options.paper, variant, options.output)
    return runs_of(plan.study, variant, options.output, plan.seeds, tuned, plan.more)


def _check_words(rows: Mapping[str, Sequence[Planned]]) -> None:
    """Refuse a user's overrides by the first run, which has them as all others, without torch."""
    label, runs = next((label, runs) for label, runs in rows.items() if runs)
    try:
        check_names(apply_overrides(read_experiment(runs[0].experiment), runs[0].overrides))
    except InputError as error:
        raise InputError(f"row '{label}': {text_of(error)}") from None


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


def _tune(plan: Plan, variant: str, options: argparse.Namespace, command: str) -> dict[str, str]:
    """Choose values on validation data, and write those that were found."""
    trials = tuning.trials_of(plan.study, variant, options.output, seed=0, more=plan.more)
    every = [run for tried in trials.values() for _, run in tried]
    if options.dry_run:
        print(f"{len(every)} runs to tune {plan.study.name} on {variant}")
        return {}
    _check({label: [run for _, run in tried] for label, tried in trials.items()}, with_data=True)
    failed = run_missing(every, options.processes, _tell)
    path = tuning.own_file(options.paper, variant, options.output)
    values = tuning.read_own(options.paper, variant, options.output)
    for label, tried in trials.items():
        best = tuning.chosen(tried)
        if best is not None:
            values[label] = best
    tuning.write_tuned(path, values, command)
    print(path)
    # A learning rate may be too large: that is an answer, and no failure of the study.
    return {} if len(failed) < len(every) else failed


def _tell(line: str) -> None:
    print(line, flush=True)


def _words(run: Planned) -> list[str]:
    settings = [f"{key}={as_text(value)}" for key, value in run.overrides.items()]
    return ["python", "-m", "mpifed.run", run.experiment, *settings]


def _seeds(given: Any) -> tuple[int, ...]:
    seeds = given if isinstance(given, list) else [given]
    if not seeds or not all(isinstance(each, int) and each >= 0 for each in seeds):
        raise InputError(f"seed is {given}; it must be a whole number, or a list of them")
    return tuple(seeds)
