"""From a job to the script that SLURM runs: plain text, for which no SLURM is needed."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from mpifed.config.job import JobOptions
from mpifed.io.yaml_files import as_text
from mpifed.jobs import slurm
from mpifed.jobs.plan import FILES, Job
from mpifed.sweep.plan import Planned

REPORT_MINUTES = 30

# A line that fails within a file that it reads is not the user's.
PROLOGUE = """trap 'code=$?; if [ "${#BASH_SOURCE[@]}" = 2 ]; then
finish 2 "the prologue failed with $code: $BASH_COMMAND"; fi' ERR
%s
trap - ERR"""
EXPERIMENT = """file=$run_dir/job/experiment.yaml
printf '%s' "$experiment" >"$file" || finish 2 "$file cannot be written"
set -- "$file" "$@\""""
RANKS = '"${launcher_options[@]}" "${container[@]}" "$python" -m mpifed.run "$@"'
# An mpirun starts a daemon a node by an srun of its own, which these would bind to one processor.
MPIRUN = f"""unset SRUN_CPUS_PER_TASK SLURM_CPUS_PER_TASK SLURM_TRES_PER_TASK
exec "$mpirun" -n "$ranks" {RANKS}"""
SRUN = f"""export SRUN_CPUS_PER_TASK=$threads # which srun does not take from the job since 22.05
set -- --mpi="$mpi" --ntasks="$ranks" --cpus-per-task="$threads" --kill-on-bad-exit=1 {RANKS}
exec srun "$@\""""
# Once a job has had nodes, SLURM wants as many tasks again, although the job would take fewer.
FEWER = """trap '[ -e "$run_dir/DONE" ] || scontrol update JobId="$job" NumTasks=%d' EXIT"""


def script(job: Job, tasks: Sequence[int]) -> str:
    """Return the script of these runs of ``job``: slurm.sbatch, with what the job says in place of
    the lines down to ``launch``.
    """
    template = (FILES / "slurm.sbatch").read_text(encoding="utf-8")
    for_all = template.partition("\n}\n")[2]
    first, title = template.splitlines()[:2]
    settings = "\n".join(_settings(job, tasks))
    return "\n".join([first, title, slurm.directives(job, tasks), settings, launch(job), for_all])


def launch(job: Job) -> str:
    """Return the function of bash that becomes the launcher of the ranks."""
    options = job.options
    body = [_prologue(options), EXPERIMENT if job.text is not None else ""]
    if _asks_for_mpi(options):
        body.append((FILES / "srun.sh").read_text(encoding="utf-8").rstrip())
    if options.gpus_per_node:
        body.append('note "GPUs of this node: ${CUDA_VISIBLE_DEVICES:-none}"')
    body.append(MPIRUN if options.launcher == "mpirun" else SRUN)
    return "\n".join(["launch() {", *filter(None, body), "}"])


def report_script(job: Job) -> str:
    """Return the script that makes the report of a sweep."""
    options = job.options
    folder = str(job.output)
    words = [*_container(options), _python(options), "-m", "mpifed.report", folder]
    lines = [
        "#!/bin/bash",
        slurm.lines(job, f"{job.name}-report", "%j", {"ntasks": 1, "time": REPORT_MINUTES}),
        "umask 077",
        'finish() { code=$1; echo "$2" >&2; exit "$code"; }',
        "report() {",
        _prologue(options),
        f"exec {shlex.join([*words, '--output', f'{folder}/report'])}",
        "}",
        "report",
    ]
    return "\n".join(lines) + "\n"


def _prologue(options: JobOptions) -> str:
    lines = [f"module load -- {shlex.quote(str(name))}" for name in options.modules or ()]
    lines += options.prologue or []
    for name, value in (options.environment or {}).items():
        lines.append(f"export {name}={shlex.quote(str(value))}")
    return PROLOGUE.replace("%s", "\n".join(lines)) if lines else ""


def _settings(job: Job, tasks: Sequence[int]) -> list[str]:
    options = job.options
    lines = [
        _assign("python", _python(options)),
        _array("container", _container(options)),
        _array("launcher_options", map(str, options.launcher_options or ())),
        _assign("max_restarts", str(options.max_restarts)),
    ]
    if job.layout.elastic:
        lines.append(FEWER % job.layout.ranks)
    if options.launcher == "mpirun":
        neighbour = Path(_python(options)).with_name("mpirun")
        lines.append(
            _assign(
                "mpirun", options.mpirun or (str(neighbour) if neighbour.exists() else "mpirun")
            )
        )
    elif not _asks_for_mpi(options):
        lines.append(_assign("mpi", options.mpi))
    if job.text is not None:
        lines.append(_assign("experiment", job.text))
    if not job.sweep:
        return lines + _run_settings(job, job.runs[tasks[0]])
    lines.append("case $SLURM_ARRAY_TASK_ID in")
    for number, run in enumerate(job.runs):
        settings = "\n".join(f"    {line}" for line in _run_settings(job, run))
        lines += [f"  {number})", settings, "    ;;"]
    return [*lines, '  *) echo "there is no task $SLURM_ARRAY_TASK_ID" >&2 && exit 2 ;;', "esac"]


def _run_settings(job: Job, run: Planned) -> list[str]:
    front = [job.experiment] if job.text is None else []
    words = [*front, *(f"{key}={as_text(value)}" for key, value in run.overrides.items())]
    return [_assign("run_dir", str(run.directory)), _array("words", words)]


def _asks_for_mpi(options: JobOptions) -> bool:
    return options.launcher == "srun" and options.mpi == "auto"


def _python(options: JobOptions) -> str:
    return options.python or ("python3" if options.image is not None else sys.executable)


def _container(options: JobOptions) -> list[str]:
    """Return the words before the interpreter."""
    if options.image is None:
        return []
    devices = ["--nv"] if options.gpus_per_node else []
    extra = map(str, options.container_options or ())
    return [options.container, "exec", *devices, *extra, options.image]


def _assign(name: str, value: str) -> str:
    return f"{name}={shlex.quote(value)}"


def _array(name: str, values: Iterable[str]) -> str:
    # All in quotes: shellcheck takes a bare comma for a slip.
    quoted = ("'" + value.replace("'", "'\"'\"'") + "'" for value in values)
    return f"{name}=({' '.join(quoted)})"
