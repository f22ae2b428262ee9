"""``python -m mpifed.jobs``: run experiments as jobs that survive what clusters do to jobs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mpifed.command import Parser, carried_out, parser_of
from mpifed.errors import EXIT_FINISHED, InputError
from mpifed.jobs import actions
from mpifed.watchdog.launcher import check_one_process

# What each action does, and the options that go with it.
ACTIONS: dict[str, tuple[Callable[[Any], None], tuple[str, ...]]] = {
    "render": (actions.render, ("output", "site", "smoke")),
    "check": (actions.check, ("output", "site", "smoke")),
    "submit": (actions.submit, ("output", "site", "smoke", "dry_run", "unchecked")),
    "status": (actions.status, ("json",)),
    "stop": (actions.stop, ("dry_run",)),
    "cancel": (actions.cancel, ("dry_run",)),
    "resume": (actions.resume, ("dry_run", "unchecked")),
}


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
        help=f"a site file, shipped or your own; without it, that of ${actions.SITE_VARIABLE}",
    )
    for name, help in (
        ("--smoke", "one round on two ranks, to try it"),
        ("--dry-run", "show what would be done"),
        ("--unchecked", "submit without looking for data and programs on this machine"),
        ("--json", "status as JSON"),
    ):
        command.add_argument(name, action="store_true", help=help)
    return command


if __name__ == "__main__":
    sys.exit(main())
