"""The arguments of ``python -m mpifed.jobs``."""

from __future__ import annotations

import argparse
from pathlib import Path

from mpifed.command import Parser, program

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
