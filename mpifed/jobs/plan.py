"""A job: its runs, their directories and its options, from the arguments of the command."""

from __future__ import annotations

import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from mpifed.components.registry import plain
from mpifed.config import configuration as config
from mpifed.config.experiments import DEFAULT_EXPERIMENT, safe, split_words
from mpifed.errors import InputError
from mpifed.io.yaml_files import as_text
from mpifed.jobs import options as job_options
from mpifed.jobs.options import JobOptions, Layout
from mpifed.results.run_directories import check_output as check_place
from mpifed.results.run_directories import holds_run
from mpifed.sweep import plan as sweep
from mpifed.sweep.plan import Planned
from mpifed.training import request


@dataclass(frozen=True)
class Job:
    """What is to be submitted; ``text`` is an experiment of the user's, as YAML."""

    experiment: str
    text: str | None
    output: Path
    sweep: bool
    runs: tuple[Planned, ...]
    given: dict[str, Any]

    @property
    def options(self) -> JobOptions:
        """The complete, validated options; raises ``InputError``."""
        return job_options.check(self.given)

    @property
    def layout(self) -> Layout:
        """Ranks and nodes."""
        return job_options.layout(self.options)

    @property
    def name(self) -> str:
        """The name of the job in SLURM."""
        return safe(str(self.options.name or f"mpifed-{self.experiment}"))


def plan(words: Sequence[str], site: str | None, output: Path | None, smoke: bool) -> Job:
    """Plan and check a job."""
    experiment, overrides = split_words(words)
    experiment = experiment or DEFAULT_EXPERIMENT
    mapping = config.read_experiment(experiment)
    section, axes = (
        job_options.mapping(mapping.pop(key, None), f"{key} in {experiment}")
        for key in ("job", "sweep")
    )
    mine, others = _divided(overrides)
    given = job_options.merged(job_options.read_site(site) if site else {}, section, mine)
    overrides = [*(f"{key}={as_text(values)}" for key, values in axes.items()), *others]
    if smoke:
        given, overrides = _smoke(given), [*overrides, "rounds=1"]
    swept = bool(sweep.split_axes(config.parse_overrides(overrides))[0])
    name, text = experiment, None
    if experiment not in config.experiment_names():
        name = safe(str(mapping["experiment"]))
        text = yaml.safe_dump(mapping, sort_keys=False, default_flow_style=None)
    now = f"{datetime.now():%Y%m%d-%H%M%S}"
    place = (output or Path("runs") / f"{name}{'-sweep' * swept}-{now}").absolute()
    if smoke:
        place = place.with_name(f"{place.name}-smoke")
    ranks = job_options.layout(job_options.check(given)).ranks
    with experiment_file(experiment, text) as source:
        runs = sweep.plan(source, overrides, place, ranks)
    if any(run.linked for run in runs):
        raise InputError(
            "{previous} and {first} are other runs of the sweep, but the tasks of a job array run "
            "side by side; python -m mpifed.sweep takes one after the other"
        )
    if smoke or not swept:
        runs, swept = [dataclasses.replace(runs[0], directory=place)], False
    return Job(name, text, place, swept, tuple(runs), given)


def check_output(job: Job) -> None:
    """Raise ``InputError`` if the output directory of ``job`` holds something already."""
    check_place(job.output)
    if (job.output / "job" / "job.json").exists() or holds_run(job.output):
        raise InputError(
            f"--output {job.output} already holds a run; continue it with python -m mpifed.jobs "
            "resume, or choose another directory"
        )


def continued(job: Job, tasks: Sequence[int], words: Sequence[str]) -> tuple[Job, list[int]]:
    """Return a job with other options and overrides, and which of its runs are not finished."""
    mine, others = _divided(words)
    given = job_options.merged(job.given, mine)
    if "ranks" in mine:  # goes before a layout that was given for another number
        for key in {"nodes", "ranks_per_node"} - set(mine):
            given.pop(key, None)
    more = config.parse_overrides(others)
    ranks = job_options.layout(job_options.check(given)).ranks
    with experiment_file(job.experiment, job.text) as source:
        mapping = config.read_experiment(source)
    runs, left = list(job.runs), []
    for task in tasks:
        directory, overrides = runs[task].directory, runs[task].overrides | more
        asked = config.resolve(config.apply_overrides(mapping, overrides), ranks)
        runs[task] = dataclasses.replace(runs[task], overrides=overrides, data=plain(asked.data))
        done = request.finished_after(directory)
        if done is not None and done >= asked.rounds:
            continue
        stored = request.stored_configuration(directory)
        if stored is not None:
            request.refuse_changes(stored, asked, directory, request.stored_horizon(stored))
        left.append(task)
    return dataclasses.replace(job, given=given, runs=tuple(runs)), left


def check_here(job: Job) -> Iterator[str]:
    """Look for the programs and data that a job needs, on this machine; yield what is there."""
    options = job.options
    brought = options.modules or options.prologue
    python, mpirun = options.python or sys.executable, options.mpirun
    if options.image is not None and not Path(options.image).exists():
        raise InputError(f"job.image is '{options.image}'; there is no such file here")
    for name, program in (("python", python), ("mpirun", mpirun)):
        if options.image is not None or program is None:
            continue
        if "/" not in program and brought:
            yield f"job.{name} is left to the job, whose modules or prologue may bring {program}"
        elif shutil.which(program):
            yield f"job.{name} is {program}"
        else:
            raise InputError(f"job.{name} is '{program}'; there is no such program here")
    with experiment_file(job.experiment, job.text) as source:
        sweep.check_data(source, job.runs)
    yield "the data can be read here"


@contextmanager
def experiment_file(experiment: str, text: str | None) -> Iterator[str]:
    """Provide the experiment as ``mpifed.run`` takes it."""
    if text is None:
        yield experiment
        return
    with tempfile.TemporaryDirectory(prefix="mpifed-job-") as directory:
        path = Path(directory) / "experiment.yaml"
        path.write_text(text, encoding="utf-8")
        yield str(path)


def _divided(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Divide overrides into options of the job and those of its runs."""
    mine = [word for word in words if word.startswith("job.")]
    return job_options.read_words(mine), [word for word in words if word not in mine]


def _smoke(given: dict[str, Any]) -> dict[str, Any]:
    """The options of a job of one round on two ranks, on two nodes if the job itself has more."""
    layout = job_options.layout(job_options.check(given))
    nodes = 2 if layout.nodes not in (None, "1") else 1
    change = {"ranks": 2, "nodes": nodes, "ranks_per_node": 2 // nodes, "time": 10}
    return {**given, **change, "max_restarts": 0, "warn_seconds": 30}
