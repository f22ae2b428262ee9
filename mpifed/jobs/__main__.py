"""``python -m mpifed.jobs``: run experiments as jobs that survive what clusters do to jobs."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpifed.command import Parser, carried_out, parser_of, say
from mpifed.errors import EXIT_FINISHED, InputError, RunError, complain
from mpifed.watchdog.launcher import check_one_process

SITE_VARIABLE = "MPIFED_SITE"


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    return carried_out("mpifed.jobs", lambda: _run(words))


def _run(words: Sequence[str] | None) -> int:
    check_one_process("leave the launcher out, a job starts its own")
    options = parser(__doc__).parse_intermixed_args(words)
    action, taken = ACTIONS[options.action]
    for name, value in vars(options).items():
        if value and name not in ("action", "words", *taken):
            allowed = ", ".join(f"--{other.replace('_', '-')}" for other in taken)
            raise InputError(
                f"--{name.replace('_', '-')} does not go with {options.action}, which takes "
                f"{allowed}"
            )
    action(options)
    return EXIT_FINISHED


def parser(description: str | None) -> Parser:
    """Return the parser of the command, whose help begins with ``description``."""
    command = parser_of("jobs", description)
    command.add_argument(
        "action",
        choices=ACTIONS,
        metavar="ACTION",
        help="render, check or submit a job; status, stop, cancel or resume one",
    )
    command.add_argument(
        "words",
        nargs="*",
        metavar="EXPERIMENT | key=value | DIR",
        help="what to run, and the options of the job; or the directories of jobs",
    )
    command.add_argument("--output", type=Path, metavar="DIR", help="default: runs/<name>-<time>")
    command.add_argument(
        "--site",
        metavar="NAME | FILE",
        help=f"a site file, shipped or your own; without it, that of ${SITE_VARIABLE}",
    )
    for name, help in (
        ("--smoke", "one round on two ranks, to try it"),
        ("--dry-run", "show what would be done"),
        ("--unchecked", "submit without looking for data and programs on this machine"),
        ("--json", "status as JSON"),
    ):
        command.add_argument(name, action="store_true", help=help)
    return command


# Before a job. What these import brings torch, which the others do without.


def _plan(options: Any) -> Any:
    from mpifed.jobs.plan import plan

    site = options.site or os.environ.get(SITE_VARIABLE)
    return plan(options.words, site, options.output, options.smoke)


def _render(options: Any) -> None:
    from mpifed.jobs.render import script

    job = _plan(options)
    say(script(job, range(len(job.runs))).removesuffix("\n"))


def _check(options: Any) -> None:
    from mpifed.jobs import plan, render, slurm

    job = _plan(options)
    plan.check_output(job)
    nodes = f" on {job.layout.nodes} nodes" if job.layout.nodes else ""
    say(f"{_runs(job.runs)} of {job.layout.ranks} ranks{nodes}")
    for line in plan.check_here(job):
        say(line)
    script = render.script(job, range(len(job.runs)))
    say(slurm.test_only(script) if shutil.which("sbatch") else "there is no SLURM here: left out")


def _submit(options: Any) -> None:
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


def _status(options: Any) -> None:
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


def _stop(options: Any) -> None:
    """Make each job write a checkpoint and end; what only waits is taken from the queue."""
    _end(options, "stop")


def _cancel(options: Any) -> None:
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


def _resume(options: Any) -> None:
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


# What each action does, and the options that go with it.
ACTIONS: dict[str, tuple[Callable[[Any], None], tuple[str, ...]]] = {
    "render": (_render, ("output", "site", "smoke")),
    "check": (_check, ("output", "site", "smoke")),
    "submit": (_submit, ("output", "site", "smoke", "dry_run", "unchecked")),
    "status": (_status, ("json",)),
    "stop": (_stop, ("dry_run",)),
    "cancel": (_cancel, ("dry_run",)),
    "resume": (_resume, ("dry_run", "unchecked")),
}


if __name__ == "__main__":
    sys.exit(main())
