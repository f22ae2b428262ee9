"""From a job to the script that SLURM runs: plain text, for which no SLURM is needed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from mpifed.errors import InputError
from mpifed.io.yaml_files import as_text
from mpifed.jobs.plan import FILES, Job, JobOptions
from mpifed.sweep.plan import Planned

MARK = re.compile(r"^#@ (\w+)$", re.MULTILINE)
PLAIN = re.compile(r"[A-Za-z0-9_./,:=@%+-]+")
REPORT_MINUTES = 30

# A line that fails within a file that it reads is not the user's.
PROLOGUE = """trap 'code=$?; if [ "${#BASH_SOURCE[@]}" = 1 ]; then
finish 2 "the prologue failed with $code: $BASH_COMMAND"; fi' ERR
%s
trap - ERR"""

# An mpirun starts a daemon a node by an srun of its own, which these would bind to one processor.
MPIRUN = """launcher=(env -u SRUN_CPUS_PER_TASK -u SLURM_CPUS_PER_TASK -u SLURM_TRES_PER_TASK)
launcher+=("$mpirun" -n "$ranks" "${launcher_options[@]}")"""
SRUN = """export SRUN_CPUS_PER_TASK=$threads # which srun does not take from the job since 22.05
launcher=(srun --mpi="$mpi" --ntasks="$ranks" --cpus-per-task="$threads" --kill-on-bad-exit=1)
launcher+=("${launcher_options[@]}")"""
EXPERIMENT = """file=$run_dir/job/experiment.yaml
printf '%s' "$experiment" >"$file" || finish 2 "$file cannot be written"
words=("$file" "${words[@]}")"""


def script(job: Job, tasks: Sequence[int] | None = None) -> str:
    """Return the script of a job."""
    options = job.options
    launcher = [SRUN if options.launcher == "srun" else MPIRUN]
    if _asks_for_mpi(options):
        launcher.insert(0, (FILES / "srun.sh").read_text(encoding="utf-8"))
    if options.gpus_per_node:
        launcher.append('note "GPUs of this node: ${CUDA_VISIBLE_DEVICES:-none}"')
    blocks = {
        "directives": _asked(job, range(len(job.runs)) if tasks is None else tasks),
        "settings": _settings(job),
        "prologue": _prologue(options),
        "experiment": EXPERIMENT if job.text is not None else "",
        "launcher": "\n".join(launcher),
    }
    template = (FILES / "job.sbatch").read_text(encoding="utf-8")
    text = MARK.sub(lambda found: blocks[found[1]].rstrip(), template)
    return re.sub(r"\n{3,}", "\n\n", text)


def report_script(job: Job) -> str:
    """Return the script that makes the report of a sweep."""
    options = job.options
    asked = {"ntasks": 1, "time": REPORT_MINUTES} | _same_as_sbatch(options)
    place = str(job.output)
    words = [*_container(options), _python(options), "-m", "mpifed.report", place]
    lines = [
        "#!/bin/bash",
        _directives(job, f"{job.name}-report", "%j", asked),
        "umask 077",
        'finish() { code=$1; echo "$2" >&2; exit "$code"; }',
        _prologue(options),
        f"exec {shlex.join([*words, '--output', f'{place}/report'])}",
    ]
    return "\n".join(lines) + "\n"


# Directives: what SLURM is asked for.


def _asked(job: Job, tasks: Sequence[int]) -> str:
    """Return the directives of a job."""
    options, layout = job.options, job.layout
    asked = {
        "open_mode": "append",
        "nodes": layout.nodes,
        "ntasks_per_node": layout.ranks_per_node,
        "ntasks": layout.ranks,
        "cpus_per_task": options.cpus_per_task,
        "gres": f"gpu:{options.gpus_per_node}" if options.gpus_per_node else None,
        "exclusive": options.exclusive,
        "time": options.time,
        **_same_as_sbatch(options),
        "signal": f"B:USR1@{options.warn_seconds}",  # to the batch script, before the limit
        "requeue" if options.max_restarts else "no_requeue": True,
    }
    if job.sweep:
        limit = f"%{options.array_limit}" if options.array_limit else ""
        asked["array"] = ",".join(map(str, tasks)) + limit
    return _directives(job, job.name, "%A_%a" if job.sweep else "%j", asked)


def _same_as_sbatch(options: JobOptions) -> dict[str, Any]:
    names = ("mem", "mem_per_cpu", "partition", "account", "qos", "constraint")
    return {name: getattr(options, name) for name in names}


def _directives(job: Job, name: str, number: str, asked: Mapping[str, Any]) -> str:
    """Return options of sbatch as directives; True is an option without a value."""
    # Only in the last part of the path are the patterns of SLURM patterns.
    output = f"{job.output}/job/".replace("%", "%%") + f"slurm-{number}.out"
    asked = {"job_name": name, "chdir": Path.cwd(), "output": output, **asked}
    lines = list(job.options.extra_directives or ())  # of two, the last counts
    for key, value in reversed(asked.items()):
        if value is not None and value is not False:
            given = "" if value is True else f"={_for_sbatch(str(value))}"
            lines.insert(0, f"--{key.replace('_', '-')}{given}")
    return "\n".join(f"#SBATCH {line}" for line in lines)


def _for_sbatch(text: str) -> str:
    """Return ``text`` quoted so that sbatch reads it literally from a directive."""
    if not text.isprintable():
        raise InputError(f"{text!r} cannot be in a directive; it must be one line of text")
    if PLAIN.fullmatch(text):
        return text
    escaped = re.sub(r'(["\\])', r"\\\1", text)
    return f'"{escaped}"'


# What the rest of the script reads.


def _prologue(options: JobOptions) -> str:
    lines = [f"module load -- {shlex.quote(str(name))}" for name in options.modules or ()]
    lines += options.prologue or []
    for name, value in (options.environment or {}).items():
        lines.append(f"export {name}={shlex.quote(str(value))}")
    return PROLOGUE.replace("%s", "\n".join(lines)) if lines else ""


def _settings(job: Job) -> str:
    options = job.options
    lines = [
        _assign("python", _python(options)),
        _array("container", _container(options)),
        _array("launcher_options", map(str, options.launcher_options or ())),
        _assign("least_ranks", str(job.layout.ranks) if job.layout.elastic else ""),
        _assign("max_restarts", str(options.max_restarts)),
    ]
    if options.launcher == "mpirun":
        beside = Path(_python(options)).with_name("mpirun")
        found = str(beside) if beside.exists() else "mpirun"
        lines.append(_assign("mpirun", options.mpirun or found))
    elif not _asks_for_mpi(options):
        lines.append(_assign("mpi", options.mpi))
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
        _array("stop_files", stops),
    ]


def _asks_for_mpi(options: JobOptions) -> bool:
    return options.launcher == "srun" and options.mpi == "auto"


def _python(options: JobOptions) -> str:
    return options.python or ("python3" if options.image is not None else sys.executable)


def _container(options: JobOptions) -> list[str]:
    """Return the words before the interpreter."""
    if options.image is None:
        return []
    devices = ["--nv"] if options.gpus_per_node else []
    more = map(str, options.container_options or ())
    return [options.container, "exec", *devices, *more, options.image]


def _assign(name: str, value: str) -> str:
    return f"{name}={shlex.quote(value)}"


def _array(name: str, values: Iterable[str]) -> str:
    # All in quotes: shellcheck takes a bare comma for a slip.
    quoted = ("'" + value.replace("'", "'\"'\"'") + "'" for value in values)
    return f"{name}=({' '.join(quoted)})"
