"""Options of a job: the resources that it requests from SLURM, and where they are given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from annotated_types import Ge

from mpifed.components.schema import check_options, shown
from mpifed.config.experiments import YAML_FILES
from mpifed.errors import InputError, closest
from mpifed.io.yaml_files import parse_value, read_yaml

# The templates of scripts, sites and examples: a link to the folder jobs of the repository.
FILES = Path(__file__).parent / "files"

Count = Annotated[int, Ge(1)]
# A text which YAML takes for a number if it looks like one: an account, a size of memory.
Text = int | str

RANGE = re.compile(r"(\d+)-\d+")


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options of a job; None leaves the choice to SLURM or to mpifed."""

    name: Text | None = None
    ranks: Count | None = None
    nodes: Count | str | None = None
    ranks_per_node: Count | None = None
    cpus_per_task: Count = 1
    mem: Text | None = None
    mem_per_cpu: Text | None = None
    time: Text = "01:00:00"
    warn_seconds: Count = 60
    max_restarts: Annotated[int, Ge(0)] = 100
    partition: Text | None = None
    account: Text | None = None
    qos: Text | None = None
    constraint: Text | None = None
    exclusive: bool = False
    gpus_per_node: Text = 0
    array_limit: Count | None = None
    launcher: Literal["mpirun", "srun"] = "mpirun"
    mpi: str = "auto"
    mpirun: str | None = None
    launcher_options: list[Text] | None = None
    python: str | None = None
    image: str | None = None
    container: str = "apptainer"
    container_options: list[Text] | None = None
    modules: list[Text] | None = None
    prologue: list[str] | None = None
    environment: dict[str, Text] | None = None
    extra_directives: list[str] | None = None


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


def check(given: Mapping[str, Any]) -> JobOptions:
    """Validate options and complete them by their defaults; what SLURM knows better, it says."""
    options = JobOptions(**check_options(JobOptions, given, "job"))
    for name, value in vars(options).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and (not text.strip() or not text.isprintable()):
                raise InputError(f"job.{name} is {shown(text)}; it must be one line of text")
    layout(options)
    return options


def layout(options: JobOptions) -> Layout:
    """Return ranks and nodes, the ones from the others; raise ``InputError`` where they differ."""
    ranks, nodes, each = options.ranks, options.nodes, options.ranks_per_node
    if isinstance(nodes, str):
        found = RANGE.fullmatch(nodes)
        if found is None or each is None or ranks is not None:
            raise InputError(
                f"job.nodes is {shown(nodes)}; it must be a whole number, at least 1, or two as in "
                "2-4 with job.ranks_per_node and without job.ranks"
            )
        return Layout(int(found[1]) * each, nodes, each)
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


def read_site(name: str) -> dict[str, Any]:
    """Return the options in a site file."""
    shipped = {file.stem: file for file in (FILES / "sites").glob("*.yaml")}
    path = shipped.get(name, Path(name))
    if path.suffix not in YAML_FILES:
        raise InputError(
            f"--site is {shown(name)}; {closest(name, shipped)}, or the path of a .yaml file"
        )
    return mapping(read_yaml(path), str(path))


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
        before, more = options.get("environment"), source.get("environment")
        options |= source
        if isinstance(before, Mapping) and isinstance(more, Mapping):
            options["environment"] = {**before, **more}
    return options


def mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a mapping of keys to values that a file holds; empty where there is none."""
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{where} does not hold a mapping of keys to values")
    return dict(value)
