"""The resources that a job requests from SLURM: options, and the ranks and nodes that they
mean.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Annotated, Any, Literal

from annotated_types import Ge

from mpifed.components.schema import check_options, shown
from mpifed.errors import InputError

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
KIND_OF_GPU = re.compile(r"[A-Za-z0-9_.-]+")

# The plugin by which srun itself starts containers.
PYXIS = "pyxis"

# Programs that take a container otherwise than as ``exec OPTIONS IMAGE COMMAND``.
OTHER_WORDS = ("podman", "podman-hpc", "docker", "enroot", "shifter", "sarus", "ch-run")


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
    max_restarts: Annotated[int, Ge(0)] = 20
    max_preemptions: Annotated[int, Ge(0)] = 100
    max_failures: Annotated[int, Ge(0)] = 3
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
    stage_when: Literal["always", "faster"] = "always"
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
        """Whether srun itself starts the container."""
        return PurePath(self.container).name == PYXIS

    @property
    def image_file(self) -> str | None:
        """The image if it is a file; pyxis takes names of a registry too."""
        if self.image is None or (self.pyxis and not self.image.startswith(("/", "./"))):
            return None
        return self.image


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
    """Complete and check options."""
    options = JobOptions(**check_options(JobOptions, given, "job"))
    _check_lines(options)
    _check_environment(options.environment)
    for name in ("mem", "mem_per_cpu"):
        value = getattr(options, name)
        if value is not None and not SIZE.fullmatch(str(value)):
            raise InputError(
                f"job.{name} is {shown(value)}; it must be a number with K, M, G or T, such as 4G"
            )
    if options.mem is not None and options.mem_per_cpu is not None:
        raise InputError(
            f"job.mem is {options.mem} and job.mem_per_cpu is {options.mem_per_cpu}; a job takes "
            "one of them"
        )
    if seconds(options.time) <= options.warn_seconds:
        raise InputError(
            f"job.warn_seconds is {options.warn_seconds}; it must be below job.time, which is "
            f"{options.time}"
        )
    _check_gpus(options)
    _check_container(options)
    ranks = layout(options).ranks
    if options.launcher == "srun" and options.mpi == "none" and ranks > 1:
        raise InputError(
            f"job.mpi is 'none', by which srun would start {ranks} runs of one rank each; leave it "
            "out, or name one that MPI can use, such as pmix or pmi2"
        )
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
    """Ranks and nodes, the ones from the others; raises ``InputError`` where they do not agree."""
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
    divisor = nodes if nodes is not None else each
    assert divisor is not None
    if ranks % divisor:
        field = "nodes" if nodes is not None else "ranks_per_node"
        raise InputError(
            f"job.ranks is {ranks}, which job.{field}, {divisor}, does not divide; every node "
            "must have the same number of ranks"
        )
    nodes, each = (nodes, ranks // nodes) if nodes is not None else (ranks // divisor, divisor)
    return Layout(ranks, str(nodes), each)


def _check_lines(options: JobOptions) -> None:
    """Refuses what would break out of its line, above all in a directive."""
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


def _check_gpus(options: JobOptions) -> None:
    if options.gpu_mode == "per_task" and options.launcher != "srun":
        raise InputError(
            "job.gpu_mode is 'per_task', which needs job.launcher=srun: mpirun starts one task on "
            "each node"
        )
    if options.gpu_type is None:
        return
    if not KIND_OF_GPU.fullmatch(options.gpu_type):
        raise InputError(
            f"job.gpu_type is {shown(options.gpu_type)}; it must be a name as SLURM has it, such "
            "as a100"
        )
    if not options.gpus_per_node:
        raise InputError(
            f"job.gpu_type is {options.gpu_type}, which needs job.gpus_per_node, at least 1"
        )


def _check_container(options: JobOptions) -> None:
    if options.image is None:
        return
    if options.stage is not None:
        raise InputError("job.stage and job.image are both given; a job takes one of them")
    program = PurePath(options.container).name
    if program in OTHER_WORDS:
        raise InputError(
            f"job.container is {shown(options.container)}, which does not take 'exec OPTIONS IMAGE "
            f"COMMAND'; it must be apptainer, singularity, or {PYXIS}, by which srun starts it"
        )
    if options.pyxis and options.launcher != "srun":
        raise InputError(f"job.container is '{PYXIS}', which needs job.launcher=srun")
    if not options.pyxis and "://" in options.image:
        raise InputError(
            f"job.image is {shown(options.image)}; it must be a file, for every rank would fetch "
            f"it: '{program} pull' makes one"
        )


def _check_environment(environment: Any) -> None:
    if environment is None:
        return
    if not isinstance(environment, Mapping):
        raise InputError(
            f"job.environment is {shown(environment)}; it must be a mapping of names to texts"
        )
    for name, value in environment.items():
        if not VARIABLE.fullmatch(name):
            raise InputError(
                f"job.environment has {shown(name)}; a variable has a name of letters, digits and _"
            )
        if not isinstance(value, (int, float, str)) or "\0" in str(value):
            raise InputError(f"job.environment.{name} is {shown(value)}; it must be a text")
