"""``python -m mpifed.jobs``: run experiments as SLURM jobs that survive what clusters do
to jobs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpifed.command import Parser, carried_out, program, say
from mpifed.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_FINISHED,
    InputError,
    RunError,
    closest,
    complain,
)
from mpifed.watchdog.launcher import check_one_process

SITE_VARIABLE = "MPIFED_SITE"
# The options that go with an action.
TAKES = {
    "render": ("output", "site", "smoke", "file", "report"),
    "check": ("output", "site", "smoke"),
    "submit": ("output", "site", "smoke", "dry_run", "unchecked"),
    "status": ("json",),
    "stop": ("dry_run",),
    "cancel": ("dry_run",),
    "resume": ("dry_run", "unchecked"),
}


def main(words: Sequence[str] | None = None) -> int:
    """Run the command."""
    try:
        check_one_process("leave the launcher out, a job starts its own")
        options = parser(__doc__).parse_intermixed_args(words)
        actions: dict[str, Callable[[Any], None]] = {
            "render": _render,
            "check": _check,
            "submit": _submit,
            "status": _status,
            "stop": _stop,
            "cancel": _cancel,
            "resume": _resume,
        }
        if options.action not in actions:
            raise InputError(
                f"unknown action '{options.action}'; {closest(options.action, actions)}"
            )
        _validate_options(options)
        actions[options.action](options)
    except InputError as error:
        complain("mpifed.jobs", str(error))
        return EXIT_BAD_INPUT
    except (RunError, OSError) as error:
        complain("mpifed.jobs", str(error))
        return EXIT_FAILED
    return EXIT_FINISHED


def _validate_options(options: Any) -> None:
    """Validate that the action uses the options given."""
    taken = TAKES[options.action]
    for name, value in vars(options).items():
        if name not in ("action", "words", *taken) and value not in (None, False):
            allowed = ", ".join(f"--{other.replace('_', '-')}" for other in taken)
            more = "; the job keeps its options, and job.key=value changes one"
            raise InputError(
                f"--{name.replace('_', '-')} does not go with {options.action}, which takes "
                f"{allowed}{more if options.action == 'resume' else ''}"
            )


def parser(description: str | None) -> Parser:
    """Return the parser of the command, whose help begins with ``description``."""
    made = Parser(
        prog=program("jobs"),
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument(
        "action", help="render, check or submit a job; status, stop, cancel or resume one"
    )
    made.add_argument(
        "words",
        nargs="*",
        metavar="EXPERIMENT | key=value | DIR",
        help="what to run, and the options of the job; or the directories of jobs",
    )
    made.add_argument("--output", type=Path, metavar="DIR", help="default: runs/<name>-<time>")
    made.add_argument(
        "--site",
        metavar="NAME | FILE",
        help=f"a site file, shipped or your own; without it, that of ${SITE_VARIABLE}",
    )
    made.add_argument("--smoke", action="store_true", help="one round on two ranks, to try it")
    made.add_argument("--dry-run", action="store_true", help="show what would be done")
    made.add_argument(
        "--unchecked",
        action="store_true",
        help="submit without looking whether data and programs are on this machine too",
    )
    made.add_argument("--file", type=Path, metavar="FILE", help="where render writes the script")
    made.add_argument("--report", action="store_true", help="render the report of a sweep")
    made.add_argument("--json", action="store_true", help="status as JSON")
    return made


# Before a job. What these import brings torch, which the others do without.


def _plan(options: Any) -> Any:
    from mpifed.jobs.plan import plan

    site = options.site or os.environ.get(SITE_VARIABLE)
    return plan(options.words, site, options.output, options.smoke)


def _render(options: Any) -> None:
    from mpifed.jobs import record, render

    job = _plan(options)
    if options.report and not job.sweep:
        raise InputError("--report is for a sweep; the job is one run")
    text = render.report_script(job) if options.report else render.script(job)
    if options.file is None:
        say(text.removesuffix("\n"))
        return
    try:
        record.replace_text(options.file, text)
    except OSError as error:
        raise InputError(f"--file {options.file} cannot be written: {error.strerror}") from None
    folder, file = shlex.quote(f"{job.output}/job"), shlex.quote(str(options.file))
    say(f"to submit it: (umask 077 && mkdir -p {folder} && sbatch {file})")


def _check(options: Any) -> None:
    from mpifed.jobs import plan, render
    from mpifed.jobs.check import checks

    job = _plan(options)
    plan.check_output(job)
    for line in checks(job, render.script(job)):
        say(line)


def _submit(options: Any) -> None:
    from mpifed.jobs import plan

    job = _plan(options)
    plan.check_output(job)
    tasks = list(range(len(job.runs)))
    if _submitted(job, tasks, [], options):
        say(f"status: python -m mpifed.jobs status {shlex.quote(str(job.output))}")


def _submitted(job: Any, tasks: list[int], history: list[Any], options: Any) -> bool:
    """Submit these runs of ``job`` and record them; checks come before anything is written."""
    from mpifed.jobs import record, render, slurm
    from mpifed.jobs.check import found_here

    script = render.script(job, tasks)
    if not options.unchecked:
        for _ in found_here(job):
            pass
    if options.dry_run:
        say(f"sbatch --parsable <<'SCRIPT'\n{script}SCRIPT")
        if job.sweep:
            say("sbatch --parsable --dependency=afterany:... <<'SCRIPT'")
            say(f"{render.report_script(job)}SCRIPT")
        return False
    collect = render.report_script(job) if job.sweep else None
    slurm.test_only(script)
    if collect is not None:
        slurm.test_only(collect)
    record.prepare(job)
    with record.marks_removed(job, tasks):
        number, report = slurm.submit(script), None
    # Recorded first: a job that nobody knows of cannot be stopped.
    record.write(job, [*history, record.entry(number, tasks, report)], script)
    if collect is not None:
        report = slurm.submit(collect, [f"--dependency=afterany:{number}"])
        record.write(job, [*history, record.entry(number, tasks, report)], script)
    runs = f"{len(tasks)} run{'s' * (len(tasks) > 1)}"
    summary = f"{runs}, report by job {report}" if report else runs
    say(f"job {number}: {summary}, {job.output}")
    return True


# A job that was submitted.


def _chosen(words: Sequence[str]) -> list[tuple[Any, list[int]]]:
    """The records of the directories named, each with the numbers of the runs that are meant."""
    from mpifed.jobs import record

    if not words:
        raise InputError("a run directory is missing; give the --output of what was submitted")
    found = []
    for word in words:
        known, task = record.read(Path(word))
        found.append((known, list(range(len(known.job.runs))) if task is None else [task]))
    return found


def _status(options: Any) -> None:
    from mpifed.jobs import slurm, status

    rows = []
    for known, tasks in _chosen(options.words):
        try:
            queued = slurm.queue(list(known.parts(tasks)))
        except RunError as error:
            # What the runs tell themselves needs no SLURM.
            complain("mpifed.jobs", str(error))
            queued = None
        rows += status.statuses(known, tasks, queued)
    if options.json:
        say(json.dumps([dataclasses.asdict(row) for row in rows], indent=2, default=str))
        return
    for row in rows:
        say(status.in_words(row))


def _stop(options: Any) -> None:
    """Make each job write a checkpoint and end; what only waits is taken from the queue."""
    from mpifed.jobs import record, slurm, status

    for known, tasks in _chosen(options.words):
        jobs = _names(known, tasks)
        if not status.alive(known, tasks, slurm.queue(list(known.parts(tasks)))):
            raise InputError(f"{_place(known, tasks)} has no job in the queue; nothing is to stop")
        if options.dry_run:
            say(f"scancel --signal=USR1 --batch {' '.join(jobs)}")
            continue
        record.ask_to_stop(_place(known, tasks))
        slurm.cancel(jobs, ["--state=PENDING"])
        slurm.cancel(jobs, ["--signal=USR1", "--batch", "--state=RUNNING"])
        say(f"asked to stop: {_place(known, tasks)}")


def _cancel(options: Any) -> None:
    """End jobs at once; they stay cancelled, and their results are kept."""
    from mpifed.jobs import record, slurm, status

    for known, tasks in _chosen(options.words):
        jobs = _names(known, tasks)
        reports = known.reports() if len(tasks) == len(known.job.runs) else []
        queued = slurm.queue([*known.parts(tasks), *reports])
        waits = any(entry.alive and entry.job in reports for entry in queued)
        if not waits and not status.alive(known, tasks, queued):
            raise InputError(
                f"{_place(known, tasks)} has no job in the queue; nothing is to cancel"
            )
        jobs += reports
        if options.dry_run:
            say(f"scancel {' '.join(jobs)}")
            continue
        record.ask_to_stop(_place(known, tasks))
        slurm.cancel(jobs)
        say(f"cancelled: {_place(known, tasks)}")


def _resume(options: Any) -> None:
    """Submit what is not finished again, with the options and overrides that are given."""
    from mpifed.jobs import plan, slurm, status

    known, tasks = _chosen(options.words[:1])[0]
    jobs = list(known.parts(tasks))
    if status.alive(known, tasks, slurm.queue(jobs)):
        raise InputError(
            f"{_place(known, tasks)} has a job in the queue, {' or '.join(jobs)}; stop or cancel "
            "it first"
        )
    job = plan.with_changes(known.job, options.words[1:])
    todo = plan.unfinished(job, tasks)
    if not todo:
        raise InputError(f"{_place(known, tasks)} is finished; a larger rounds=N would continue it")
    _submitted(job, todo, list(known.history), options)


def _names(known: Any, tasks: Sequence[int]) -> list[str]:
    """The jobs of these runs as SLURM's commands take them."""
    names = []
    everything = known.parts(range(len(known.job.runs)))
    for job, part in known.parts(tasks).items():
        names += [job] if part == everything[job] else [f"{job}_{task}" for task in part]
    return names


def _place(known: Any, tasks: Sequence[int]) -> Path:
    """The directory of a whole job, or of the one run of it that is meant."""
    if len(tasks) == len(known.job.runs):
        return Path(known.job.output)
    return Path(known.job.runs[tasks[0]].directory)


if __name__ == "__main__":
    sys.exit(carried_out("mpifed.jobs", main))
