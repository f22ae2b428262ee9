"""From a job to the script that SLURM runs: plain text, for which no SLURM is needed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from mpifed.errors import InputError, closest
from mpifed.io.yaml_files import as_text
from mpifed.jobs.options import FILES, JobOptions
from mpifed.jobs.plan import Job
from mpifed.sweep.plan import Planned

MARK = re.compile(r"^#@ (\w+)$", re.MULTILINE)
PLAIN = re.compile(r"[A-Za-z0-9_./,:=@%+-]+")
BARE = re.compile(r"[A-Za-z0-9_./:=@%+-]+")
REPORT_MINUTES = 30

# A line that fails within a file that it reads is not the user's.
PROLOGUE = """trap 'code=$?; if [ "${#BASH_SOURCE[@]}" = 1 ]; then
finish 2 "the prologue failed with $code: $BASH_COMMAND"; fi' ERR
%s
trap - ERR"""

# An mpirun starts a daemon a node by an srun of its own, which these would bind to one processor.
MPIRUN = """launcher=(env -u SRUN_CPUS_PER_TASK -u SLURM_CPUS_PER_TASK -u SLURM_TRES_PER_TASK)
launcher+=("$mpirun" -n "$ranks")
launcher+=("${launcher_options[@]}")"""
SRUN = """export SRUN_CPUS_PER_TASK=$threads # which srun does not take from the job since 22.05
launcher=(srun --mpi="$mpi" --ntasks="$ranks" --cpus-per-task="$threads" --kill-on-bad-exit=1)
launcher+=("${launcher_options[@]}")"""
EXPERIMENT = """file=$run_dir/job/experiment.yaml
printf '%s' "$experiment" >"$file" || finish 2 "$file cannot be written"
words=("$file" "${words[@]}")"""
UNSTAGE = 'on_every_node rm -rf "$staged" || note "$staged was not removed on every node"'

Asked = list[tuple[str, str | None]]


def script(job: Job, tasks: Sequence[int] | None = None) -> str:
    """Return the script of a job."""
    options = job.options
    chosen = list(range(len(job.runs))) if tasks is None else list(tasks)
    launcher = [(FILES / "srun.sh").read_text(encoding="utf-8")] if _asks_for_mpi(options) else []
    launcher.append(SRUN if options.launcher == "srun" else MPIRUN)
    if options.gpus_per_node:
        launcher.append('note "GPUs of this node: ${CUDA_VISIBLE_DEVICES:-none}"')
    blocks = {
        "directives": _directives(job, _resources(job) + _life(job, chosen)),
        "settings": _settings(job),
        "prologue": _prologue(options),
        "experiment": EXPERIMENT if job.text is not None else "",
        "stage": (FILES / "stage.sh").read_text(encoding="utf-8") if options.stage else "",
        "launcher": "\n".join(launcher),
        "unstage": UNSTAGE if options.stage else "",
    }
    own = options.template
    if own is not None and not Path(own).is_file():
        raise InputError(f"job.template is '{own}'; there is no such file")
    return _fill(Path(own) if own else FILES / "job.sbatch", blocks, options.login_shell)


def report_script(job: Job) -> str:
    """Return the script that makes the report of a sweep."""
    options = job.options
    asked: Asked = [
        ("--job-name", f"{job.name}-report"),
        ("--chdir", str(Path.cwd())),
        ("--output", _percent(f"{job.output}/job/slurm-%j.out")),
        ("--ntasks", "1"),
        *_given(options, ("mem", "mem_per_cpu")),
        ("--time", str(REPORT_MINUTES)),
        *_given(options, ("partition", "account", "qos", "constraint")),
    ]
    once = ["srun", "--ntasks=1"] if options.pyxis else []
    settings = [
        _assign("python", _python(options)),
        _array("container", once + options.container_words),
        _assign("run_dir", str(job.output)),
    ]
    blocks = {
        "directives": _directives(job, asked),
        "settings": "\n".join(settings),
        "prologue": _prologue(options),
    }
    return _fill(FILES / "report.sbatch", blocks, options.login_shell)


def _fill(template: Path, blocks: dict[str, str], login_shell: bool) -> str:
    def block(found: re.Match[str]) -> str:
        name = found[1]
        if name not in blocks:
            raise InputError(f"{template} has the mark '#@ {name}'; {closest(name, blocks)}")
        return blocks[name].rstrip()

    try:
        text = MARK.sub(block, template.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{template} cannot be read: {error}") from None
    if login_shell:
        text = text.replace("#!/bin/bash\n", "#!/bin/bash -l\n", 1)
    return re.sub(r"\n{3,}", "\n\n", text)


# Directives: what SLURM is asked for.


def _resources(job: Job) -> Asked:
    options, layout = job.options, job.layout
    asked: Asked = [
        ("--job-name", job.name),
        ("--chdir", str(Path.cwd())),
        ("--output", _percent(f"{job.output}/job/slurm-{'%A_%a' if job.sweep else '%j'}.out")),
        ("--open-mode", "append"),
    ]
    if layout.nodes is not None:
        asked += [("--nodes", layout.nodes), ("--ntasks-per-node", str(layout.ranks_per_node))]
    asked += [("--ntasks", str(layout.ranks)), ("--cpus-per-task", str(options.cpus_per_task))]
    asked += _given(options, ("mem", "mem_per_cpu"))
    if options.gpus_per_node:
        kind = f"{options.gpu_type}:" if options.gpu_type else ""
        asked.append(("--gres", f"gpu:{kind}{options.gpus_per_node}"))
    if options.exclusive:
        asked.append(("--exclusive", None))
    asked.append(("--time", str(options.time)))
    return asked + _given(options, ("partition", "account", "qos", "constraint"))


def _given(options: JobOptions, names: Sequence[str]) -> Asked:
    values = {name: getattr(options, name) for name in names}
    return [
        (f"--{name.replace('_', '-')}", str(value))
        for name, value in values.items()
        if value is not None
    ]


def _life(job: Job, tasks: Sequence[int]) -> Asked:
    """Return how the job is warned, queued again, and split into tasks."""
    options = job.options
    asked: Asked = [
        ("--signal", f"B:USR1@{options.warn_seconds}"),
        ("--requeue" if options.max_restarts else "--no-requeue", None),
    ]
    if job.sweep:
        limit = f"%{options.array_limit}" if options.array_limit else ""
        asked.append(("--array", ",".join(map(str, tasks)) + limit))
    return asked


def _directives(job: Job, asked: Asked) -> str:
    options = job.options
    known = {name.removeprefix("--") for name, _ in _resources(job) + _life(job, [0])}
    known |= {"mem", "mem-per-cpu", "gres", "nodes", "ntasks", "array"}
    skipped = [name.lstrip("-").replace("_", "-") for name in options.skip_directives or ()]
    for name in skipped:
        if name not in known:
            raise InputError(f"job.skip_directives has '{name}'; {closest(name, known)}")
    lines = [
        f"#SBATCH {name}" + (f"={_for_sbatch(value)}" if value is not None else "")
        for name, value in asked
        if name.removeprefix("--") not in skipped
    ]
    return "\n".join([*lines, *(f"#SBATCH {text}" for text in options.extra_directives or ())])


def _for_sbatch(text: str) -> str:
    """Return ``text`` quoted so that sbatch reads it literally from a directive."""
    if not text.isprintable():
        raise InputError(f"{text!r} cannot be in a directive; it must be one line of text")
    if PLAIN.fullmatch(text):
        return text
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return f'"{escaped}"'


def _percent(path: str) -> str:
    """Return a path in which only the patterns of its last part are patterns of SLURM."""
    folders, _, name = path.rpartition("/")
    return f"{folders.replace('%', '%%')}/{name}"


# What the rest of the script reads.


def _prologue(options: JobOptions) -> str:
    lines = [f"module load -- {shlex.quote(str(name))}" for name in options.modules or ()]
    lines += options.prologue or []
    for name, value in (options.environment or {}).items():
        lines.append(f"export {name}={shlex.quote(str(value))}")
    return PROLOGUE.replace("%s", "\n".join(lines)) if lines else ""


def _settings(job: Job) -> str:
    options = job.options
    words = [str(word) for word in options.launcher_options or ()]
    if options.gpu_mode == "per_task" and options.gpus_per_node:
        words.insert(0, "--gpus-per-task=1")
    if options.pyxis:
        words = options.container_words + words
    lines = [
        _assign("python", _python(options)),
        _array("container", [] if options.pyxis else options.container_words),
        _array("launcher_options", words),
        _assign("least_ranks", str(job.layout.ranks) if job.layout.elastic else ""),
        _assign("max_restarts", str(options.max_restarts)),
    ]
    if options.launcher == "mpirun" or options.stage:
        lines.append(_assign("mpirun", _mpirun(options)))
    if _asks_for_mpi(options):
        once = ["srun", "--mpi=none", "--ntasks=1", "--nodes=1", *options.container_words]
        lines.append(_array("once", once if options.pyxis else []))
    elif options.launcher == "srun":
        lines.append(_assign("mpi", options.mpi))
    if options.stage:
        lines.append(_assign("stage", str(Path(options.stage).absolute())))
        lines.append(_assign("scratch", options.scratch))
    if job.text is not None:
        lines.append(_assign("experiment", job.text))
    if not job.sweep:
        return "\n".join(lines + _run_settings(job, job.runs[0]))
    lines.append("case $SLURM_ARRAY_TASK_ID in")
    for number, run in enumerate(job.runs):
        settings = "\n".join(f"    {line}" for line in _run_settings(job, run))
        lines += [f"  {number})", settings, "    ;;"]
    lines += ['  *) echo "there is no task $SLURM_ARRAY_TASK_ID" >&2 && exit 2 ;;', "esac"]
    return "\n".join(lines)


def _run_settings(job: Job, run: Planned) -> list[str]:
    front = [job.experiment] if job.text is None else []
    words = [*front, *(f"{key}={as_text(value)}" for key, value in run.overrides.items())]
    stops = dict.fromkeys(f"{place}/job/stop" for place in (run.directory, job.output))
    return [
        _assign("run_dir", str(run.directory)),
        _array("words", words),
        _array("stop_files", list(stops)),
    ]


def _asks_for_mpi(options: JobOptions) -> bool:
    return options.launcher == "srun" and options.mpi == "auto"


def _python(options: JobOptions) -> str:
    return options.python or ("python3" if options.image is not None else sys.executable)


def _mpirun(options: JobOptions) -> str:
    """Return the mpirun beside the interpreter, else that of the PATH."""
    beside = Path(_python(options)).parent / "mpirun"
    return options.mpirun or (str(beside) if beside.exists() else "mpirun")


def _assign(name: str, value: str) -> str:
    return f"{name}={shlex.quote(value)}"


def _array(name: str, values: Sequence[str]) -> str:
    # shlex leaves commas bare, which shellcheck takes for a slip
    quoted = (
        value if BARE.fullmatch(value) else "'" + value.replace("'", "'\"'\"'") + "'"
        for value in values
    )
    return f"{name}=({' '.join(quoted)})"
