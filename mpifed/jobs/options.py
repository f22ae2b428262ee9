"""Options of a job: the resources that it requests from SLURM, and where they are given."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal

from annotated_types import Ge

from mpifed.components.schema import check_options, shown
from mpifed.errors import InputError, closest
from mpifed.io.yaml_files import parse_value, read_yaml

# The templates of scripts, sites and examples: a link to the folder jobs of the repository.
FILES = Path(__file__).parent / "files"

Count = Annotated[int, Ge(1)]
# A text which YAML takes for a number if it looks like one: an account, a size of memory.
Text = int | str

TIME = re.compile(
    r"(?P<minutes>\d+)|((?P<h>\d+):)?(?P<m>\d+):(?P<s>\d+)"
    r"|(?P<days>\d+)-(?P<dh>\d+)(:(?P<dm>\d+)(:(?P<ds>\d+))?)?"
)
SIZE = re.compile(r"\d+[KMGT]?")
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
RANGE = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """The options of a job; None leaves the choice to SLURM or to mpifed."""

    name: Text | None = None
    template: str | None = None
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
    gpus_per_node: Annotated[int, Ge(0)] = 0
    gpu_type: str | None = None
    gpu_mode: Literal["all_visible", "per_task"] = "all_visible"
    array_limit: Count | None = None
    launcher: Literal["mpirun", "srun"] = "mpirun"
    mpi: str = "auto"
    mpirun: str | None = None
    launcher_options: list[Text] | None = None
    python: str | None = None
    stage: str | None = None
    scratch: str = "/tmp"
    image: str | None = None
    container: str = "apptainer"
    container_options: list[Text] | None = None
    login_shell: bool = False
    modules: list[Text] | None = None
    prologue: list[str] | None = None
    environment: Any = None
    extra_directives: list[str] | None = None
    skip_directives: list[str] | None = None

    @property
    def pyxis(self) -> bool:
        """Whether srun itself starts the container, by its plugin pyxis."""
        return self.image is not None and PurePath(self.container).name == "pyxis"

    @property
    def container_words(self) -> list[str]:
        """The words before the interpreter, or with pyxis the options of srun."""
        more = [str(word) for word in self.container_options or ()]
        if self.image is None:
            return []
        if self.pyxis:
            return [f"--container-image={self.image}", *more]
        devices = ["--nv"] if self.gpus_per_node else []
        return [self.container, "exec", *devices, *more, self.image]


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
    """Validate options and complete them by their defaults."""
    options = JobOptions(**check_options(JobOptions, given, "job"))
    _check_lines(options)
    _check_environment(options.environment)
    for name in ("mem", "mem_per_cpu"):
        value = getattr(options, name)
        if value is not None and not SIZE.fullmatch(str(value)):
            raise InputError(
                f"job.{name} is {shown(value)}; it must be a number with K, M, G or T, such as 4G"
            )
    if seconds(options.time) <= options.warn_seconds:
        raise InputError(
            f"job.warn_seconds is {options.warn_seconds}; it must be below job.time, which is "
            f"{options.time}"
        )
    ranks = layout(options).ranks
    srun = options.launcher == "srun"
    for wrong, sentence in (
        (
            options.mem is not None and options.mem_per_cpu is not None,
            "job.mem and job.mem_per_cpu are both given; a job takes one of them",
        ),
        (
            options.gpu_mode == "per_task" and not srun,
            "job.gpu_mode is 'per_task', which needs job.launcher=srun: mpirun starts one task on "
            "each node",
        ),
        (
            options.gpu_type is not None and not options.gpus_per_node,
            f"job.gpu_type is {options.gpu_type}, which needs job.gpus_per_node, at least 1",
        ),
        (
            options.stage is not None and options.image is not None,
            "job.stage and job.image are both given; a job takes one of them",
        ),
        (options.pyxis and not srun, "job.container is 'pyxis', which needs job.launcher=srun"),
        (
            srun and options.mpi == "none" and ranks > 1,
            f"job.mpi is 'none', by which srun would start {ranks} runs of one rank each; leave it "
            "out, or name one that MPI can use, such as pmix or pmi2",
        ),
    ):
        if wrong:
            raise InputError(sentence)
    return options


def seconds(time: Text) -> int:
    """Return a time limit of SLURM in seconds."""
    found = TIME.fullmatch(str(time))
    total = 0
    if found:
        part = {name: int(value or 0) for name, value in found.groupdict().items()}
        total = 60 * part["minutes"] + 3600 * (part["h"] + part["dh"] + 24 * part["days"])
        total += 60 * (part["m"] + part["dm"]) + part["s"] + part["ds"]
    if not total:
        raise InputError(
            f"job.time is {shown(time)}; it must be minutes, hours:minutes:seconds or "
            "days-hours:minutes:seconds"
        )
    return total


def layout(options: JobOptions) -> Layout:
    """Return ranks and nodes, the ones from the others; raise ``InputError`` where they differ."""
    ranks, nodes, each = options.ranks, options.nodes, options.ranks_per_node
    if isinstance(nodes, str):
        found = RANGE.fullmatch(nodes)
        if not found or not 0 < int(found[1]) <= int(found[2]):
            raise InputError(
                f"job.nodes is {shown(nodes)}; it must be a whole number, at least 1, or two as "
                "in 2-4"
            )
        if each is None or ranks is not None:
            raise InputError(
                f"job.nodes is {nodes}, which needs job.ranks_per_node and takes no job.ranks"
            )
        return Layout(int(found[1]) * each, nodes, each)
    if nodes is not None and each is not None:
        if ranks not in (None, nodes * each):
            raise InputError(
                f"job.nodes x job.ranks_per_node is {nodes} x {each} = {nodes * each}, but "
                f"job.ranks is {ranks}; leave one of them out"
            )
        return Layout(nodes * each, str(nodes), each)
    if ranks is None:
        raise InputError(
            "job.ranks is missing; it must be a whole number, at least 1, unless job.nodes and "
            "job.ranks_per_node are given"
        )
    if nodes is None and each is None:
        return Layout(ranks, None, None)
    name, divisor = ("nodes", nodes) if nodes is not None else ("ranks_per_node", each)
    assert divisor is not None
    if ranks % divisor:
        raise InputError(
            f"job.ranks is {ranks}, which job.{name}, {divisor}, does not divide; every node must "
            "have the same number of ranks"
        )
    other = ranks // divisor
    nodes, each = (divisor, other) if name == "nodes" else (other, divisor)
    return Layout(ranks, str(nodes), each)


def _check_lines(options: JobOptions) -> None:
    """Validate that no text breaks out of its line, above all in a directive."""
    for name, value in vars(options).items():
        for text in value if isinstance(value, list) else [value]:
            if isinstance(text, str) and (not text.strip() or not text.isprintable()):
                raise InputError(f"job.{name} is {shown(text)}; it must be one line of text")
    for text in options.extra_directives or ():
        if not text.startswith("-"):
            raise InputError(
                f"job.extra_directives has {shown(text)}; each must be an option of sbatch, such "
                "as --reservation=NAME"
            )


def _check_environment(environment: Any) -> None:
    if environment is None:
        return
    if not isinstance(environment, Mapping):
        raise InputError(
            f"job.environment is {shown(environment)}; it must be a mapping of names to texts"
        )
    for name, value in environment.items():
        if not isinstance(name, str) or not VARIABLE.fullmatch(name):
            raise InputError(
                f"job.environment has {shown(name)}; a variable has a name of letters, digits and _"
            )
        # YAML reads FALSE and 1e3 as values that are written otherwise.
        if type(value) not in (int, str) or "\0" in str(value):
            raise InputError(
                f"job.environment.{name} is {shown(value)}; it must be a text, in quotes"
            )


def read_site(name: str) -> dict[str, Any]:
    """Return the options in a site file."""
    sites = FILES / "sites"
    names = [file.stem for file in sites.glob("*.yaml")]
    path = sites / f"{name}.yaml" if name in names else Path(name)
    if path.suffix not in (".yaml", ".yml"):
        raise InputError(
            f"--site is {shown(name)}; {closest(name, names)}, or the path of a .yaml file"
        )
    found = _mapping(read_yaml(path), str(path))
    try:
        check_options(JobOptions, found, "job")
    except InputError as error:
        raise InputError(f"{path}: {error}") from None
    return found


def read_section(path: Path) -> dict[str, Any]:
    """Return the section ``job`` of an experiment file; empty if there is none."""
    content = read_yaml(path)
    section = content.get("job") if isinstance(content, Mapping) else None
    return _mapping(section, f"job in {path}")


def read_words(words: Sequence[str]) -> dict[str, Any]:
    """Return ``job.key=value`` arguments as options; a variable of the environment is a text."""
    options: dict[str, Any] = {}
    for word in words:
        key, _, text = word.removeprefix("job.").partition("=")
        name, dot, variable = key.partition(".")
        if dot and name == "environment":
            options[name] = {**options.get(name, {}), variable: text}
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


def _mapping(value: Any, where: str) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        raise InputError(f"{where} does not hold a mapping of options to values")
    return dict(value)
