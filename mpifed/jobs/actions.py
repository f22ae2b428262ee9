"""What each action of ``mpifed jobs`` does, from the parsed options of the command."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mpifed.command import say
from mpifed.errors import InputError, RunError, complain

SITE_VARIABLE = "MPIFED_SITE"

# What the functions import brings torch, which those of submitted jobs do without.


def _plan(options: Any) -> Any:
    from mpifed.jobs.plan import plan

    site = options.site or os.environ.get(SITE_VARIABLE)
    return plan(options.words, site, options.output, options.smoke)


def render(options: Any) -> None:
    """Print the script of a job."""
    from mpifed.jobs.render import script

    job = _plan(options)
    say(script(job, range(len(job.runs))).removesuffix("\n"))


def check(options: Any) -> None:
    """Check a job, and what it needs on this machine."""
    from mpifed.jobs import plan, render, slurm

    job = _plan(options)
    plan.check_output(job)
    nodes = f" on {job.layout.nodes} nodes" if job.layout.nodes else ""
    say(f"{_runs(job.runs)} of {job.layout.ranks} ranks{nodes}")
    for line in plan.check_here(job):
        say(line)
    script = render.script(job, range(len(job.runs)))
    say(slurm.test_only(script) if shutil.which("sbatch") else "there is no SLURM here: left out")


def submit(options: Any) -> None:
    """Submit a job."""
    from mpifed.jobs import plan

    job = _plan(options)
    plan.check_output(job)
    _submitted(job, list(range(len(job.runs))), [], options)


def _submitted(job: Any, tasks: list[int], history: list[Any], options: Any) -> None:
    """Submit these runs of ``job`` and record them; checks come before anything is written."""
    from mpifed.jobs import plan, record, render, slurm

    script = render.script(job, tasks)
    report_script = render.report_script(job) if job.sweep else None
    if not options.unchecked:
        list(plan.check_here(job))
    if options.dry_run:
        say(f"sbatch --parsable <<'SCRIPT'\n{script}SCRIPT")
        if report_script:
            say(f"sbatch --dependency=afterany:... <<'SCRIPT'\n{report_script}SCRIPT")
        return
    slurm.test_only(script)
    if report_script:
        slurm.test_only(report_script)
    record.prepare(job)
    # Marks that the runs are finished or to stop.
    marks = [job.runs[task].directory / name for task in tasks for name in ("job/stop", "DONE")]
    texts = {mark: mark.read_text(encoding="utf-8") for mark in marks if mark.exists()}
    for mark in texts:
        mark.unlink()
    try:
        number = slurm.submit(script)
    except BaseException:
        for mark, text in texts.items():
            record.replace_text(mark, text)
        raise
    record.replace_text(job.output / "job" / "job.sh", script)
    # Recorded at once: a job that nobody knows of cannot be stopped.
    newest = record.entry(number, tasks, None)
    record.write(job, [*history, newest])
    summary = f"job {number}: {_runs(tasks)}"
    if report_script:
        report = slurm.submit(report_script, [f"--dependency=afterany:{number}"])
        record.write(job, [*history, {**newest, "report": report}])
        summary += f", report by job {report}"
    say(f"{summary}, {job.output}")
    say(f"status: python -m mpifed.jobs status {shlex.quote(str(job.output))}")


def _runs(runs: Sequence[Any]) -> str:
    return f"{len(runs)} run{'s' * (len(runs) > 1)}"


# A job that was submitted.


def _chosen(words: Sequence[str]) -> list[tuple[Any, list[int]]]:
    """The records of the directories named, each with the numbers of the runs that are meant."""
    from mpifed.jobs import record

    if not words:
        raise InputError("a run directory is missing; give the --output of what was submitted")
    return [record.read(Path(word)) for word in words]


def status(options: Any) -> None:
    """Print how far jobs are."""
    from mpifed.jobs import record, slurm

    chosen = _chosen(options.words)
    try:
        queued = slurm.queue()
    except (InputError, RunError) as error:
        # What the runs tell themselves needs no SLURM.
        complain("mpifed.jobs", str(error))
        queued = None
    rows = [record.status(submitted, task, queued) for submitted, tasks in chosen for task in tasks]
    if options.json:
        say(json.dumps(rows, indent=2, default=str))
        return
    for row in rows:
        say(record.in_words(row))


def stop(options: Any) -> None:
    """Make each job write a checkpoint and end; what only waits is taken from the queue."""
    _end(options, "stop")


def cancel(options: Any) -> None:
    """End jobs at once; they stay cancelled, and their results are kept."""
    _end(options, "cancel")


def _end(options: Any, action: str) -> None:
    from mpifed.jobs import slurm

    for submitted, tasks in _chosen(options.words):
        directory, jobs = submitted.directory(tasks), [submitted.name(task) for task in tasks]
        if action == "cancel" and len(tasks) == len(submitted.job.runs):
            jobs += submitted.reports()
        queued = slurm.queue()
        alive = [job for job in jobs if job in queued and queued[job].alive]
        if not alive:
            raise InputError(f"{directory} has no job in the queue; nothing is to {action}")
        commands = slurm.endings(action, alive)
        if options.dry_run:
            for command in commands:
                say(shlex.join(command))
            continue
        for task in tasks:  # the job is not queued again
            (submitted.job.runs[task].directory / "job" / "stop").touch(mode=0o600)
        for command in commands:
            slurm.end(command)
        say(f"{'cancelled' if action == 'cancel' else 'asked to stop'}: {directory}")


def resume(options: Any) -> None:
    """Submit what is not finished again, with the options and overrides that are given."""
    from mpifed.jobs import plan, slurm

    submitted, tasks = _chosen(options.words[:1])[0]
    directory, names = submitted.directory(tasks), list(map(submitted.name, tasks))
    queued = slurm.queue()
    alive = [job for job in names if job in queued and queued[job].alive]
    if alive:
        raise InputError(f"{directory} has a job in the queue, {alive[0]}; stop or cancel it first")
    job, todo = plan.continued(submitted.job, tasks, options.words[1:])
    if not todo:
        raise InputError(f"{directory} is finished; a larger rounds=N would continue it")
    _submitted(job, todo, list(submitted.history), options)
