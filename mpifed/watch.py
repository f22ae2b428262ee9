"""``python -m mpifed.watch RUN``: a running run in a terminal, from the files that it writes."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from mpifed.command import Parser, carried_out, program
from mpifed.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_FINISHED,
    InputError,
    complain,
    text_of,
)
from mpifed.report.watching import View, drawn, progress, view
from topologies.inputs import number

# Type of the time between two looks.
SECONDS = number(float, "from 0.1 to 3600 seconds", lambda value: 0.1 <= value <= 3600)
# Looks in a row that may find files in the middle of a change.
PATIENCE = 3


def main(words: Sequence[str] | None = None) -> int:
    """Run ``python -m mpifed.watch``."""
    try:
        options = parser().parse_args(words)
        if not (options.run_dir / "config.yaml").is_file():
            raise InputError(
                f"'{options.run_dir}' holds no run: there is no config.yaml in it; name the "
                "directory that --output names"
            )
        last = _in_terminal(options) if sys.stdout.isatty() else _line_by_line(options)
    except InputError as error:
        complain("mpifed.watch", text_of(error))
        return EXIT_BAD_INPUT
    except KeyboardInterrupt:
        return EXIT_FINISHED
    print(f"{options.run_dir}: {last.state}")
    return EXIT_FINISHED if last.going or last.run.finished else EXIT_FAILED


def follow(path: Path, every: float, once: bool, show: Callable[[View], None]) -> View:
    """Show a run until it ends."""
    failed = 0
    while True:
        try:
            now = view(path)
        except InputError:
            # A run that begins or ends replaces its files one after the other.
            failed += 1
            if once or failed == PATIENCE:
                raise
        else:
            failed = 0
            show(now)
            if once or not now.going:
                return now
        time.sleep(every)


def _in_terminal(options: argparse.Namespace) -> View:
    from rich.live import Live

    with Live(auto_refresh=False) as live:
        return follow(
            options.run_dir,
            options.every,
            options.once,
            lambda now: live.update(drawn(now), refresh=True),
        )


def _line_by_line(options: argparse.Namespace) -> View:
    said: list[str] = []

    def show(now: View) -> None:
        line = progress(now)
        accuracy = now.run.last("test_accuracy")
        line += f", test accuracy {100 * accuracy:.2f} %" if accuracy == accuracy else ""
        if not said or said[-1] != line:
            said.append(line)
            print(line, flush=True)

    return follow(options.run_dir, options.every, options.once, show)


def parser() -> Parser:
    """Return the parser of the command."""
    made = Parser(
        prog=program("watch"),
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    made.add_argument("run_dir", type=Path, metavar="RUN", help="a run directory")
    made.add_argument(
        "--every", type=SECONDS, default=2.0, metavar="SECONDS", help="between two looks; 2"
    )
    made.add_argument("--once", action="store_true", help="show the run as it is now, and end")
    return made


if __name__ == "__main__":
    sys.exit(carried_out("mpifed.watch", main))
