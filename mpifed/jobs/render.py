"""From a job to the script that SLURM runs: plain text, for which no SLURM is needed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from mpifed.errors import InputError, closest
from mpifed.io.yaml_files import as_text
from mpifed.jobs import containers
from mpifed.jobs.files import folder
from mpifed.jobs.job import Job
from mpifed.jobs.options import JobOptions
from mpifed.sweep.plan import Planned

LIBRARY = "mpifed_job.sh"
PROLOGUE = "mpifed_prologue.sh"
MARK = re.compile(r"^#@ (\w+)$", re.MULTILINE)
PLAIN = re.compile(r"[A-Za-z0-9_./,:=@%+-]+")
BARE = re.compile(r"[A-Za-z0-9_./:=@%+-]+")
REPORT_MINUTES = 30


def script(job: Job, tasks: Sequence[int] | None = None) -> str:
    """Return the script of a job."""
    options = job.options
    chosen = list(range(len(job.runs))) if tasks is None else list(tasks)
    blocks = {
        "directives": _directives(job, _resources(job) + _life(job, chosen)),
        "prologue": _prologue(options),
        "settings": _settings(job),
        "library": (folder("lib") / LIBRARY).read_text(encoding="utf-8").rstrip(),
        "tasks": _tasks(job) if job.sweep else "",
    }
    return _fill(template_of(job), blocks, options.login_shell)


def report_script(job: Job) -> str:
    """Return the script that makes the report of a sweep; raises as :func:`script`."""
    options = job.options
    asked = [
        ("--job-name", f"{job.name}-report"),
        ("--chdir", str(Path.cwd())),
        ("--output", _percent(f"{job.output}/job/slurm-%j.out")),
        ("--ntasks", "1"),
        *_memory(options),
        ("--time", str(REPORT_MINUTES)),
        *_place(options),
    ]
    settings = [
        _assign("python", _python(options)),
        _array("container", containers.once(options)),
        _assign("sweep_dir", str(job.output)),
    ]
    blocks = {
        "directives": _directives(job, asked),
        "prologue": _prologue(options),
        "settings": "\n".join(["set -uo pipefail", *settings]),
    }
    return _fill(folder("templates") / "report.sbatch", blocks, options.login_shell)


def template_of(job: Job) -> Path:
    """Return the path of the template for ``job``."""
    options = job.options
    given = options.template
    if given is not None and given.endswith(".sbatch"):
        if not Path(given).is_file():
            raise InputError(f"job.template is '{given}'; there is no such file")
        return Path(given)
    names = [path.stem for path in folder("templates").glob("*.sbatch") if path.stem != "report"]
    fitting = _fitting(job, options)
    if given is not None and given not in names:
        raise InputError(
            f"job.template is '{given}'; {closest(given, names)}, or the path of a .sbatch file"
        )
    if given is not None and (given == "array") != (fitting == "array"):
        which = "several runs" if job.sweep else "one run"
        raise InputError(f"job.template is '{given}', but the job is {which}; leave it out")
    return folder("templates") / f"{given or fitting}.sbatch"


def _fitting(job: Job, options: JobOptions) -> str:
    if job.sweep:
        return "array"
    if options.image is not None:
        return "container"
    return "gpu" if options.gpus_per_node else options.launcher


def _fill(template: Path, blocks: dict[str, str], login_shell: bool) -> str:
    def block(found: re.Match[str]) -> str:
        name = found[1]
        if name not in blocks:
            raise InputError(f"{template} has the mark '#@ {name}'; {closest(name, blocks)}")
        return blocks[name]

    try:
        text = MARK.sub(block, template.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{template} cannot be read: {error}") from None
    if login_shell:
        text = text.replace("#!/bin/bash\n", "#!/bin/bash -l\n", 1)
    return re.sub(r"\n{3,}", "\n\n", text)


# Directives: what SLURM is asked for.


def _resources(job: Job) -> list[tuple[str, str | None]]:
    options, layout = job.options, job.layout
    asked: list[tuple[str, str | None]] = [
        ("--job-name", job.name),
        ("--chdir", str(Path.cwd())),
        ("--output", _percent(f"{job.output}/job/slurm-{'%A_%a' if job.sweep else '%j'}.out")),
        ("--open-mode", "append"),
    ]
    if layout.nodes is not None:
        asked += [("--nodes", layout.nodes), ("--ntasks-per-node", str(layout.ranks_per_node))]
    asked += [
        ("--ntasks", str(layout.ranks)),
        ("--cpus-per-task", str(options.cpus_per_task)),
        *_memory(options),
    ]
    if options.gpus_per_node:
        kind = f"{options.gpu_type}:" if options.gpu_type else ""
        asked.append(("--gres", f"gpu:{kind}{options.gpus_per_node}"))
    if options.exclusive:
        asked.append(("--exclusive", None))
    return [*asked, ("--time", str(options.time)), *_place(options)]


def _memory(options: JobOptions) -> list[tuple[str, str | None]]:
    names = ("mem", "mem_per_cpu")
    return _given(options, names)


def _place(options: JobOptions) -> list[tuple[str, str | None]]:
    return _given(options, ("partition", "account", "qos", "constraint"))


def _given(options: JobOptions, names: Iterable[str]) -> list[tuple[str, str | None]]:
    values = {name: getattr(options, name) for name in names}
    return [
        (f"--{name.replace('_', '-')}", str(value))
        for name, value in values.items()
        if value is not None
    ]


def _life(job: Job, tasks: Sequence[int]) -> list[tuple[str, str | None]]:
    """How the job is warned, queued again, and split into tasks."""
    options = job.options
    asked: list[tuple[str, str | None]] = [
        ("--signal", f"B:USR1@{options.warn_seconds}"),
        ("--requeue" if options.max_restarts else "--no-requeue", None),
    ]
    if job.sweep:
        limit = f"%{options.array_limit}" if options.array_limit else ""
        asked.append(("--array", ",".join(map(str, tasks)) + limit))
    return asked


def _directives(job: Job, asked: Sequence[tuple[str, str | None]]) -> str:
    options = job.options
    known = {name.removeprefix("--") for name, _ in _resources(job) + _life(job, [0])}
    skipped = [name.lstrip("-").replace("_", "-") for name in options.skip_directives or ()]
    for name in skipped:
        if name not in known | {"mem", "mem-per-cpu", "gres", "nodes", "ntasks", "array"}:
            raise InputError(f"job.skip_directives has '{name}'; {closest(name, known)}")
    lines = [
        f"#SBATCH {name}" + (f"={_for_sbatch(value)}" if value is not None else "")
        for name, value in asked
        if name.removeprefix("--") not in skipped
    ]
    return "\n".join([*lines, *(f"#SBATCH {text}" for text in options.extra_directives or ())])


def _for_sbatch(text: str) -> str:
    """``text`` quoted so that sbatch reads it literally from a directive."""
    if not text.isprintable():
        raise InputError(f"{text!r} cannot be in a directive; it must be one line of text")
    if PLAIN.fullmatch(text):
        return text
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return f'"{escaped}"'


def _percent(path: str) -> str:
    """A path in which only the patterns of its last part are patterns of SLURM."""
    folders, _, name = path.rpartition("/")
    return f"{folders.replace('%', '%%')}/{name}"


# Settings: what the shell library reads.


def _prologue(options: JobOptions) -> str:
    """The user's lines up to the first that fails, in front of the settings."""
    lines = [f"module load -- {shlex.quote(str(name))}" for name in options.modules or ()]
    lines += options.prologue or []
    for name, value in (options.environment or {}).items():
        lines.append(f"export {name}={shlex.quote(str(value))}")
    text = (folder("lib") / PROLOGUE).read_text(encoding="utf-8").rstrip()
    _, _, text = text.partition("\n")  # a directive for shellcheck
    listening, _, rest = text.partition("\n\n")
    return f"{listening}\n{rest.replace('#@ lines', chr(10).join(lines))}" if lines else listening


def _settings(job: Job) -> str:
    options = job.options
    per_task = options.gpu_mode == "per_task" and options.gpus_per_node
    lines = [
        "set -uo pipefail",
        _assign("experiment", job.text or ""),
        _assign("python", _python(options)),
        _assign("launcher", options.launcher),
        _assign("mpirun", _mpirun(options)),
        _assign("mpi", options.mpi),
        _array("bind_gpus", ["--gpus-per-task=1"] if per_task else []),
        _array("srun_container", containers.srun_words(options)),
        _array("launcher_options", [str(word) for word in options.launcher_options or ()]),
        _assign("least_ranks", str(job.layout.ranks) if job.layout.elastic else ""),
        _assign("warn_seconds", str(options.warn_seconds)),
        _assign("max_restarts", str(options.max_restarts)),
        _assign("max_preemptions", str(options.max_preemptions)),
        _assign("max_failures", str(options.max_failures)),
        _assign("stage", str(Path(options.stage).absolute()) if options.stage else ""),
        _assign("stage_when", options.stage_when),
        _assign("scratch", options.scratch),
        _assign("image", str(options.image_file or "")),
        _array("container", containers.words(options)),
    ]
    return "\n".join([*lines, *([] if job.sweep else _run_settings(job, job.runs[0]))])


def _run_settings(job: Job, run: Planned) -> list[str]:
    front = [job.experiment] if job.text is None else []
    words = [*front, *(f"{key}={as_text(value)}" for key, value in run.overrides.items())]
    stops = dict.fromkeys(f"{place}/job/stop" for place in (run.directory, job.output))
    return [
        _assign("run_dir", str(run.directory)),
        _array("words", words),
        _array("stop_files", list(stops)),
    ]


def _tasks(job: Job) -> str:
    lines = ["choose_task() {", "  case $SLURM_ARRAY_TASK_ID in"]
    for number, run in enumerate(job.runs):
        settings = "\n".join(f"      {line}" for line in _run_settings(job, run))
        lines += [f"    {number})", settings, "      ;;"]
    lines += ['    *) echo "there is no task $SLURM_ARRAY_TASK_ID" >&2 && exit 2 ;;', "  esac", "}"]
    return "\n".join(lines)


def _python(options: JobOptions) -> str:
    return options.python or ("python3" if options.image is not None else sys.executable)


def _mpirun(options: JobOptions) -> str:
    """The mpirun beside the interpreter, else that of the PATH."""
    beside = Path(_python(options)).parent / "mpirun"
    return options.mpirun or (str(beside) if beside.exists() else "mpirun")


def _assign(name: str, value: str) -> str:
    return f"{name}={shlex.quote(value)}"


def _array(name: str, values: Sequence[str]) -> str:
    # shlex leaves commas bare, which shellcheck takes for a slip
    quoted = (value if BARE.fullmatch(value) else _quote(value) for value in values)
    return f"{name}=({' '.join(quoted)})"


def _quote(value: str) -> str:
    return "'" + value.replace("'", "'\"'\"'") + "'"
