"""From a job to the scripts that a scheduler runs: plain text, for which none is needed."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from mpifed.io.yaml_files import as_text
from mpifed.jobs.plan import FILES, Job, JobOptions, seconds
from mpifed.jobs.schedulers import SCHEDULERS, Scheduler, Slurm
from mpifed.sweep.plan import Planned

MARK = re.compile(r"^#@ (\w+)$", re.MULTILINE)
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
# A signal would end `flux run` and not its ranks.
FLUX = """launcher=(flux run --ntasks="$ranks" --cores-per-task="$threads" -o exit-on-error)
launcher+=(-o gpu-affinity=off) # every rank sees all GPUs of its node
launcher+=("${launcher_options[@]}")
pass_on() { flux job killall --force --signal=USR1; }"""
WATCH = """exec >>"$run_dir/job/output.txt" 2>&1
watch &"""
EXPERIMENT = """file=$run_dir/job/experiment.yaml
printf '%s' "$experiment" >"$file" || finish 2 "$file cannot be written"
words=("$file" "${words[@]}")"""


def scripts(job: Job, tasks: Sequence[int]) -> list[tuple[list[int], str]]:
    """Return the scripts of these runs of ``job``: one, or one for each where arrays are not."""
    parts = [tasks] if scheduler_of(job).arrays else [[task] for task in tasks]
    return [(list(part), _script(job, part)) for part in parts]


def scheduler_of(job: Job) -> Scheduler:
    """Return the scheduler that a job is for."""
    return SCHEDULERS[job.given.get("scheduler", "slurm")]


def _script(job: Job, tasks: Sequence[int]) -> str:
    options, scheduler = job.options, scheduler_of(job)
    launcher = [{"mpirun": MPIRUN, "srun": SRUN, "flux": FLUX}[options.launcher]]
    if _asks_for_mpi(options):
        launcher.insert(0, _file("srun.sh"))
    if options.gpus_per_node:
        launcher.append('note "GPUs of this node: ${CUDA_VISIBLE_DEVICES:-none}"')
    front = [_file("slurm.sh")] if scheduler.arrays else [scheduler.place, _file("successor.sh")]
    blocks = {
        "directives": scheduler.directives(job, tasks),
        "settings": _settings(job, tasks),
        "scheduler": "\n".join(front),
        "watch": "" if scheduler.arrays else WATCH,
        "prologue": _prologue(options),
        "experiment": EXPERIMENT if job.text is not None else "",
        "launcher": "\n".join(launcher),
    }
    text = MARK.sub(lambda found: blocks[found[1]].rstrip(), _file("job.sh"))
    return re.sub(r"\n{3,}", "\n\n", text)


def _file(name: str) -> str:
    return (FILES / name).read_text(encoding="utf-8")


def report_script(job: Job) -> str:
    """Return the script that makes the report of a sweep, for SLURM."""
    options = job.options
    place = str(job.output)
    words = [*_container(options), _python(options), "-m", "mpifed.report", place]
    lines = [
        "#!/bin/bash",
        Slurm().lines(job, f"{job.name}-report", "%j", {"ntasks": 1, "time": REPORT_MINUTES}),
        "umask 077",
        'finish() { code=$1; echo "$2" >&2; exit "$code"; }',
        _prologue(options),
        f"exec {shlex.join([*words, '--output', f'{place}/report'])}",
    ]
    return "\n".join(lines) + "\n"


# What the rest of the script reads.


def _prologue(options: JobOptions) -> str:
    lines = [f"module load -- {shlex.quote(str(name))}" for name in options.modules or ()]
    lines += options.prologue or []
    for name, value in (options.environment or {}).items():
        lines.append(f"export {name}={shlex.quote(str(value))}")
    return PROLOGUE.replace("%s", "\n".join(lines)) if lines else ""


def _settings(job: Job, tasks: Sequence[int]) -> str:
    options, scheduler = job.options, scheduler_of(job)
    lines = [
        _assign("python", _python(options)),
        _array("container", _container(options)),
        _array("launcher_options", map(str, options.launcher_options or ())),
        _assign("max_restarts", str(options.max_restarts)),
    ]
    if scheduler.arrays:
        lines.append(_assign("least_ranks", str(job.layout.ranks) if job.layout.elastic else ""))
    else:
        submission = (*scheduler.submission[:-1], *scheduler.inside, scheduler.submission[-1])
        lines += [
            f"cd {shlex.quote(str(Path.cwd()))} || exit 2",
            _array("submission", submission),
            _assign("scheduler", scheduler.title),
            f"ranks={job.layout.ranks} threads={options.cpus_per_task}",
            f"warn_after={seconds(options) - options.warn_seconds}",
        ]
    if options.launcher == "mpirun":
        beside = Path(_python(options)).with_name("mpirun")
        found = str(beside) if beside.exists() else "mpirun"
        lines.append(_assign("mpirun", options.mpirun or found))
    elif options.launcher == "srun" and not _asks_for_mpi(options):
        lines.append(_assign("mpi", options.mpi))
    if job.text is not None:
        lines.append(_assign("experiment", job.text))
    if not (job.sweep and scheduler.arrays):
        return "\n".join(lines + _run_settings(job, job.runs[tasks[0]]))
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
