"""A job: its options, its runs and their directories, from the arguments of the command."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import yaml

from mpifed.config import configuration as config
from mpifed.config.experiments import YAML_FILES, naming_line, safe, split_words
from mpifed.config.job import JobOptions
from mpifed.errors import InputError, closest
from mpifed.io.yaml_files import Dumper, as_text, parse_value, read_yaml
from mpifed.results.results import read_summary
from mpifed.results.run_directories import check_output as check_place
from mpifed.results.run_directories import holds_run
from mpifed.sweep import plan as sweep
from mpifed.sweep.plan import Planned
from topologies.errors import excerpt
from topologies.schema import check_options

# The templates of scripts, sites and examples, to which the folder jobs of a checkout leads.
FILES = Path(__file__).parent / "files"

RANGE = re.compile(r"(\d+)-\d+")

# A limit of time as SLURM takes it: minutes, minutes:seconds, hours:minutes:seconds, or days and
# hours with more of these; and a size of memory.
TIME = re.compile(
    r"(?P<minutes>\d+)(:(?P<seconds>[0-5]?\d))?|(?P<h>\d+):(?P<m>[0-5]?\d):(?P<s>[0-5]?\d)"
    r"|(?P<days>\d+)-(?P<hours>\d+)(:(?P<dm>[0-5]?\d)(:(?P<ds>[0-5]?\d))?)?"
)
UNLIMITED = ("infinite", "unlimited", "-1", "0")
MEMORY = re.compile(r"\d+([kmgt]b?)?", re.IGNORECASE)

# Seconds that the command ``module`` may take.
MODULES = 60.0
ONE_WORD = ("partition", "account", "qos", "mem", "mem_per_cpu", "time", "gpus_per_node")


@dataclass(frozen=True)
class Layout:
    """Ranks and nodes."""

    ranks: int
    nodes: str | None
    ranks_per_node: int | None

    @property
    def elastic(self) -> bool:
        """Whether SLURM chooses the number of ranks."""
        return self.nodes is not None and "-" in self.nodes


def check(settings: Mapping[str, Any]) -> JobOptions:
    """Validate options and complete them by their defaults; what SLURM knows, it says."""
    options = JobOptions(**check_options(JobOptions, settings, "job"))
    for name, value in vars(options).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and (not text.strip() or not text.isprintable()):
                raise InputError(f"job.{name} is {excerpt(text)}; it must be one line of text")
            if name in ONE_WORD and len(str(text).split()) > 1:
                raise InputError(f"job.{name} is {excerpt(text)}; it must be one word")
    seconds = limit_of(options.time)
    if seconds is not None and seconds <= options.warn_seconds:
        raise InputError(
            f"job.time is {excerpt(options.time)}, {seconds:g} seconds, which must be more than "
            f"job.warn_seconds, {options.warn_seconds}: so long before the limit SLURM warns a run"
        )
    for name, value in (("mem", options.mem), ("mem_per_cpu", options.mem_per_cpu)):
        if value is not None and not MEMORY.fullmatch(str(value)):
            raise InputError(
                f"job.{name} is {excerpt(value)}; it must be a size of memory such as 500M or 16G"
            )
    if options.image is None and ("container" in settings or options.container_options):
        raise InputError("job.image is missing, which job.container is to run")
    layout(options)
    return options


def limit_of(time: str | int) -> float | None:
    """Return a limit of time in seconds; None where it is unlimited."""
    if str(time).lower() in UNLIMITED:
        return None
    parts = TIME.fullmatch(str(time))
    if parts is None:
        raise InputError(
            f"job.time is {excerpt(time)}; it must be a time as SLURM has it: minutes, "
            "hours:minutes:seconds such as 04:00:00, or days-hours:minutes:seconds"
        )
    scale = {"minutes": 60, "seconds": 1, "h": 3600, "m": 60, "s": 1}
    scale |= {"days": 86400, "hours": 3600, "dm": 60, "ds": 1}
    return sum(scale[name] * int(value or 0) for name, value in parts.groupdict().items())


def layout(options: JobOptions) -> Layout:
    """Return ranks and nodes, the ones from the others; raise ``InputError`` where they differ."""
    ranks, nodes, each = options.ranks, options.nodes, options.ranks_per_node
    if isinstance(nodes, str):
        bounds = RANGE.fullmatch(nodes)
        if bounds is None or each is None or ranks is not None:
            raise InputError(
                f"job.nodes is {excerpt(nodes)}; it must be a whole number, at least 1, or two as "
                "in 2-4 with job.ranks_per_node and without job.ranks"
            )
        return Layout(int(bounds[1]) * each, nodes, each)
    if ranks is None and (nodes is None or each is None):
        raise InputError(
            "job.ranks is missing; it must be a whole number, at least 1, unless job.nodes and "
            "job.ranks_per_node are given"
        )
    if nodes is None and each is None:
        return Layout(ranks or 0, None, None)
    nodes = nodes or (ranks or 0) // (each or 1)
    each = each or (ranks or 0) // nodes
    if ranks not in (None, nodes * each):
        raise InputError(
            f"job.ranks is {ranks}, which is not job.nodes x job.ranks_per_node, {nodes} x {each}; "
            "every node has the same number of ranks"
        )
    return Layout(nodes * each, str(nodes), each)


def read_site(name: str, option: str = "--site") -> dict[str, Any]:
    """Return the options in a site file, which ``option`` names."""
    shipped = {file.stem: file for file in (FILES / "sites").glob("*.yaml")}
    path = shipped.get(name, Path(name))
    if path.suffix not in YAML_FILES:
        raise InputError(
            f"{option} is {excerpt(name)}; {closest(name, shipped)}, or the path of a .yaml file"
        )
    return _mapping(read_yaml(path), str(path))


def read_words(words: Sequence[str]) -> dict[str, Any]:
    """Return ``job.key=value`` arguments as options; a variable of the environment is a text."""
    options: dict[str, Any] = {}
    for word in words:
        key, _, text = word.removeprefix("job.").partition("=")
        if key.startswith("environment."):
            variable = key.removeprefix("environment.")
            options = merged(options, {"environment": {variable: text}})
        else:
            options[key] = parse_value(text, f"job.{key}")
    return options


def merged(*sources: Mapping[str, Any]) -> dict[str, Any]:
    """Merge options, the later over the earlier; variables of ``environment`` add up."""
    options: dict[str, Any] = {}
    for source in sources:
        before, after = options.get("environment"), source.get("environment")
        options |= source
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            options["environment"] = {**before, **after}
    return options


def _mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a mapping of keys to values that a file holds; empty where there is none."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{where} does not hold a mapping of keys to values")
    return dict(value)


@dataclass(frozen=True)
class Job:
    """What is to be submitted; ``text`` is an experiment of the user's, as YAML."""

    experiment: str
    text: str | None
    output: Path
    sweep: bool
    runs: tuple[Planned, ...]
    settings: dict[str, Any]

    @property
    def options(self) -> JobOptions:
        """The complete, validated options; raises ``InputError``."""
        return check(self.settings)

    @property
    def layout(self) -> Layout:
        """Ranks and nodes."""
        return layout(self.options)

    @property
    def name(self) -> str:
        """The name of the job in the queue."""
        return safe(str(self.options.name or f"mpifed-{self.experiment}"))


def plan(words: Sequence[str], site: str | None, output: Path | None, smoke: bool) -> Job:
    """Plan and check a job."""
    experiment, overrides = split_words(words)
    mine, others = _divided(overrides)
    mapping = config.read_experiment(experiment, config.parse_overrides(others))
    experiment = experiment or str(mapping["experiment"])
    section, axes = (
        _mapping(mapping.pop(key, None), f"{key} in {experiment}") for key in ("job", "sweep")
    )
    settings = merged(read_site(site) if site else {}, section, mine)
    overrides = [*(f"{key}={as_text(values)}" for key, values in axes.items()), *others]
    if sweep.split_linked(overrides)[1]:
        raise InputError(
            "{previous} and {first} are other runs of the sweep, but the tasks of a job array run "
            "side by side; python -m mpifed.sweep takes one after the other"
        )
    if smoke:
        settings, overrides = _smoke(settings), [*overrides, "rounds=1"]
    swept = bool(sweep.split_axes(config.parse_overrides(overrides), mapping)[0])
    name, text = experiment, None
    if experiment not in config.experiment_names():
        name = safe(str(mapping["experiment"]))
        text = yaml.dump(mapping, Dumper=Dumper, sort_keys=False, default_flow_style=None)
    now = f"{datetime.now():%Y%m%d-%H%M%S}"
    directory = (output or Path("runs") / f"{name}{'-sweep' * swept}-{now}").absolute()
    if smoke:
        directory = directory.with_name(f"{directory.name}-smoke")
    keys = [word.partition("=")[0] for word in (*words, *overrides)]
    with naming_line(experiment, keys), experiment_file(experiment, text) as source:
        ranks = layout(check(settings)).ranks
        runs = sweep.planned_runs(source, overrides, directory, ranks)
    _check_ranks(ranks, runs)
    if smoke or not swept:
        runs, swept = [dataclasses.replace(runs[0], directory=directory)], False
    return Job(name, text, directory, swept, tuple(runs), settings)


def _check_ranks(ranks: int, runs: Sequence[Planned]) -> None:
    """Refuse more ranks than a run has clients: nodes would be idle."""
    for clients in (run.configuration.clients for run in runs if run.configuration is not None):
        if ranks > clients:
            raise InputError(
                f"job.ranks is {ranks}, which must be at most the number of clients, {clients}: a "
                "rank hosts at least one"
            )


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
    settings = merged(job.settings, mine)
    if "ranks" in mine:  # goes before a layout that was given for another number
        for key in {"nodes", "ranks_per_node"} - set(mine):
            settings.pop(key, None)
    changes = config.parse_overrides(others)
    ranks = layout(check(settings)).ranks
    with experiment_file(job.experiment, job.text) as source:
        mapping = config.read_experiment(source)
    runs, left = list(job.runs), []
    for task in tasks:
        directory, overrides = runs[task].directory, runs[task].overrides | changes
        configuration = config.resolve(config.apply_overrides(mapping, overrides), ranks)
        runs[task] = dataclasses.replace(
            runs[task], overrides=overrides, configuration=configuration
        )
        done = (directory / "DONE").exists() and read_summary(directory / "summary.json")
        if done and done["rounds"] >= configuration.rounds:
            continue
        from mpifed.training import request  # which imports torch, as no wrong name shall

        if done and request.ended_before(directory, configuration):
            continue
        stored = request.stored_configuration(directory)
        if stored is not None:
            request.check_changes(stored, configuration, directory, request.stored_horizon(stored))
        left.append(task)
    _check_ranks(ranks, runs)
    return dataclasses.replace(job, settings=settings, runs=tuple(runs)), left


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
    missing = _missing_modules([str(name) for name in options.modules or ()])
    if missing:
        raise InputError(
            f"job.modules has {', '.join(map(repr, missing))}; there is no such module here "
            "(`module avail` lists them)"
        )
    sweep.check_data(job.runs)
    yield "the data can be read here"


def _missing_modules(names: Sequence[str]) -> list[str]:
    """Return which modules the command ``module`` of a login shell does not have."""
    if not names:
        return []
    script = 'for name; do module is-avail "$name" >/dev/null 2>&1 || echo "$name"; done'
    words = ["bash", "-lc", script, "bash", *names]
    try:
        answer = subprocess.run(words, capture_output=True, text=True, timeout=MODULES, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return answer.stdout.splitlines()


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
    for key in (word.partition("=")[0] for word in words):
        if key in JobOptions.__dataclass_fields__:
            raise InputError(f"Unknown configuration key '{key}'; did you mean job.{key}?")
    return read_words(mine), [word for word in words if word not in mine]


def _smoke(settings: dict[str, Any]) -> dict[str, Any]:
    """The options of a job of one round on two ranks, on two nodes if the job itself has more."""
    nodes = 2 if layout(check(settings)).nodes not in (None, "1") else 1
    change = {"ranks": 2, "nodes": nodes, "ranks_per_node": 2 // nodes, "time": 10}
    return {**settings, **change, "max_restarts": 0, "warn_seconds": 30}
