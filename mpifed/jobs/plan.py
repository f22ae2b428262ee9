"""A job: its runs, their directories and its options, from the arguments of the command."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, get_type_hints

import yaml

from mpifed.components.registry import find, plain
from mpifed.components.schema import check_value, options_of
from mpifed.config import configuration as config
from mpifed.config.configuration import Configuration
from mpifed.config.experiments import DEFAULT_EXPERIMENT, DEFAULTS, safe, split_words
from mpifed.errors import InputError
from mpifed.federation.participation import Bernoulli
from mpifed.io.yaml_files import as_text
from mpifed.jobs import options as job_options
from mpifed.jobs.options import JobOptions, Layout
from mpifed.results.run_directories import check_output as check_place
from mpifed.results.run_directories import holds_run
from mpifed.sweep import plan as sweep
from mpifed.sweep.plan import Planned, split_linked
from mpifed.training import request

SECTIONS = {**config.SECTIONS, "participation": Bernoulli}


@dataclass(frozen=True)
class Job:
    """What is to be submitted."""

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
    is_file = experiment not in config.experiment_names()
    given = job_options.merged(
        job_options.read_site(site) if site else {},
        job_options.read_section(Path(experiment)) if is_file else {},
        job_options.read_words([word for word in overrides if word.startswith("job.")]),
    )
    overrides = [word for word in overrides if not word.startswith("job.")]
    _, links = split_linked(overrides)
    if links:
        raise InputError(
            f"{next(iter(links))} names another run of the sweep, but the tasks of a job array run "
            "side by side; "
            "python -m mpifed.sweep takes one after the other"
        )
    if is_file:
        mapping = {key: value for key, value in mapping.items() if key != "job"}
        overrides = [*_axes_as_words(mapping, overrides), *overrides]
    if smoke:
        given, overrides = _smoke(given), [*overrides, "rounds=1"]
    text = yaml.safe_dump(mapping, sort_keys=False, default_flow_style=None) if is_file else None
    name = safe(str(mapping["experiment"]))
    parsed = config.parse_overrides(overrides)
    swept = bool(sweep.split_axes(parsed)[0])
    place = (output or _default_output(name, swept)).absolute()
    if smoke:
        place = place.with_name(f"{place.name}-smoke")
    ranks = job_options.layout(job_options.check(given)).ranks
    with experiment_file(experiment, text) as source:
        runs = sweep.plan(source, overrides, place, ranks)
    if smoke or not swept:
        runs, swept = [dataclasses.replace(runs[0], directory=place)], False
    return Job(experiment if text is None else name, text, place, swept, tuple(runs), given)


def check_output(job: Job) -> None:
    """Raise ``InputError`` if the output directory of ``job`` holds something already."""
    output = job.output
    if "\\" in str(output) or not str(output).isprintable():
        raise InputError(f"--output is {str(output)!r}; SLURM takes no such characters in a path")
    check_place(output)
    if (output / "job" / "job.json").exists() or holds_run(output):
        raise InputError(
            f"--output {output} already holds a run; continue it with python -m mpifed.jobs "
            "resume, or choose another directory"
        )


def with_changes(job: Job, words: Sequence[str]) -> Job:
    """Return a job with other options and overrides, to continue its unfinished runs."""
    mine = job_options.read_words([word for word in words if word.startswith("job.")])
    before = dict(job.given)
    if "ranks" in mine:
        # The number of ranks given anew goes before a layout that was given for another.
        each = before.get("ranks_per_node")
        fits = isinstance(each, int) and isinstance(mine["ranks"], int) and not mine["ranks"] % each
        if "nodes" in mine or not fits:
            before.pop("ranks_per_node", None)
        before.pop("nodes", None)
    given = job_options.merged(before, mine)
    wrong = next((word for word in words if "=" not in word), None)
    if wrong is not None:
        raise InputError(f"'{wrong}' is not an override of the form key=value")
    more = config.parse_overrides([word for word in words if not word.startswith("job.")])
    runs = tuple(dataclasses.replace(run, overrides=run.overrides | more) for run in job.runs)
    changed = dataclasses.replace(job, given=given, runs=runs)
    complete = zip(runs, _configurations(changed, range(len(runs))), strict=True)
    found = tuple(dataclasses.replace(run, data=plain(whole.data)) for run, whole in complete)
    return dataclasses.replace(changed, runs=found)


def _configurations(job: Job, tasks: Sequence[int]) -> Iterator[Configuration]:
    """Yield the complete configurations of these runs; raises ``InputError``."""
    with experiment_file(job.experiment, job.text) as source:
        mapping = config.read_experiment(source)
    ranks = job.layout.ranks
    for task in tasks:
        yield config.resolve(config.apply_overrides(mapping, job.runs[task].overrides), ranks)


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


def _default_output(name: str, swept: bool) -> Path:
    return Path("runs") / f"{name}{'-sweep' * swept}-{datetime.now():%Y%m%d-%H%M%S}"


def _smoke(given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a job of one round on two ranks, on two nodes if the job itself has more."""
    layout = job_options.layout(job_options.check(given))
    nodes = 2 if layout.nodes not in (None, "1") else 1
    change = {"ranks": 2, "nodes": nodes, "ranks_per_node": 2 // nodes, "time": 10}
    return {**given, **change, "max_restarts": 0, "warn_seconds": 30}


def _axes_as_words(mapping: Mapping[str, Any], overrides: Sequence[str]) -> list[str]:
    """The lists in an experiment that are swept over, as overrides; those of ``overrides`` go
    before them.
    """
    replaced = [word.partition("=")[0].removesuffix(".name") for word in overrides]
    axes = _axes(mapping)
    kept = {
        key: values
        for key, values in axes.items()
        if not any(key == other or key.startswith(f"{other}.") for other in replaced)
    }
    return [f"{key}={as_text(values)}" for key, values in kept.items()]


def _axes(mapping: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Dotted keys and lists: every list except those that an option takes as its value."""
    hints = get_type_hints(Configuration, include_extras=True)
    found: dict[str, list[Any]] = {}
    for key, value in mapping.items():
        if isinstance(value, Mapping):
            found |= _axes_within(value, key, _annotations(key, value))
        elif isinstance(value, list) and not _takes(hints.get(key, Any), value):
            found[key] = value
    return found


def _axes_within(
    section: Mapping[str, Any], path: str, annotations: Mapping[str, Any]
) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for key, value in section.items():
        where = f"{path}.{key}"
        if isinstance(value, Mapping):
            found |= _axes_within(value, where, {})
        elif isinstance(value, list) and not _takes(annotations.get(key, Any), value):
            if key == "name" and len(section) > 1:
                raise InputError(
                    f"{where} is a list beside other options, which do not go with every name; "
                    f"write {path}: [{{name: {value[0] if value else '...'}, ...}}, ...]"
                )
            found[path if key == "name" else where] = value
    return found


def _annotations(section: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """What the options of a section are annotated with; nothing where its name is not known yet."""
    component: Any = SECTIONS.get(section)
    name = given.get("name", DEFAULTS.get(section))
    if section in DEFAULTS and isinstance(name, str):
        component = find(section, name)
    if component is None:
        return {}
    return {key: option.annotation for key, option in options_of(component).items()}


def _takes(annotation: Any, value: list[Any]) -> bool:
    """Whether an option takes ``value`` as a whole."""
    if annotation is Any:
        return False
    try:
        check_value(value, annotation, "")
    except InputError:
        return False
    return True


def unfinished(job: Job, tasks: Sequence[int]) -> list[int]:
    """Return which runs have not reached their number of rounds."""
    left = []
    for task, complete in zip(tasks, _configurations(job, tasks), strict=True):
        directory = job.runs[task].directory
        done = request.finished_after(directory)
        if done is not None and done >= complete.rounds:
            continue
        stored = request.stored_configuration(directory)
        if stored is not None:
            request.refuse_changes(stored, complete, directory, request.stored_horizon(stored))
        left.append(task)
    return left
