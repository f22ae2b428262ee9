"""``python -m mpifed.watch RUN``: a running run in a terminal, from the files that it writes.

What a terminal shows of a run: progress, last values, the end of the log.
"""

from __future__ import annotations

import argparse
import fcntl
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group as Lines
from rich.table import Table
from rich.text import Text

from mpifed.command import Parser, carried_out, parser_of
from mpifed.errors import EXIT_FAILED, EXIT_FINISHED, InputError, one_line
from mpifed.report.names import data_title, in_words, method_title
from mpifed.report.runs import MEASURES, Run, read_run
from topologies.command_line import number

GOING, ENDED = "going on", "not going on"

BAR, CURVE = 40, 32  # letters of the bar and of a curve
LOG_LINES, LOG_BYTES = 6, 1 << 16
LEVELS = "▁▂▃▄▅▆▇█"
# Columns of metrics.csv that are shown where they have numbers: name, factor, form.
SHOWN = {
    "train_loss": ("training loss", 1.0, "{:.4f}"),
    "test_accuracy": ("test accuracy (%)", 100.0, "{:.2f}"),
    "test_accuracy_p10": ("bottom decile (%)", 100.0, "{:.2f}"),
    "consensus_distance": ("distance from consensus", 1.0, "{:.3g}"),
    **{
        column: (measure.short, measure.factor, "{:.2f}" if measure.factor == 100 else "{:.4g}")
        for column, measure in MEASURES.items()
    },
}


@dataclass(frozen=True)
class View:
    """A run as it is now."""

    run: Run
    state: str
    log: list[str]

    @property
    def going(self) -> bool:
        """Whether the run may write more."""
        return self.state == GOING


def view(path: Path) -> View:
    """Return a run as it is now."""
    state = _state(path)  # before the measurements: what a run wrote at its end is then read
    run = read_run(path)
    if run.finished or run.diverged:
        state = "finished" if run.finished else "diverged"
    return View(run, state, _end_of_log(path / "log.txt"))


def progress(shown: View) -> str:
    """Return the line of progress: bar, round, seconds a round, time left."""
    run = shown.run
    planned = run.config.get("rounds")
    at = run.rounds or 0
    if not isinstance(planned, int) or planned < 1:
        return f"round {at}"
    full = BAR * min(at, planned) // planned
    parts = [f"{'█' * full}{'░' * (BAR - full)} round {at} of {planned}"]
    seconds = seconds_a_round(run.metrics["round"], run.metrics["seconds"])
    if math.isfinite(seconds):
        parts.append(f"{seconds:.3g} s/round")
        if shown.going:
            left = round(seconds * (planned - at))
            parts.append(f"{left // 3600}:{left // 60 % 60:02}:{left % 60:02} left")
    return ", ".join(parts)


def seconds_a_round(rounds: np.ndarray, seconds: np.ndarray) -> float:
    """Return the wall time of a round over the later half of the measurements."""
    if len(rounds) < 2:
        return math.nan
    first = (len(rounds) - 1) // 2
    return float((seconds[-1] - seconds[first]) / (rounds[-1] - rounds[first]))


def curve(values: np.ndarray, width: int = CURVE) -> str:
    """Return values as a line of blocks from the least to the largest."""
    if not len(values):
        return ""
    if len(values) > width:
        values = values[np.linspace(0, len(values) - 1, width).round().astype(int)]
    spread = float(np.ptp(values))
    share = (values - values.min()) / spread if spread > 0 else np.zeros(len(values))
    return "".join(LEVELS[int(one)] for one in np.minimum(share * len(LEVELS), len(LEVELS) - 1))


def drawn(shown: View) -> Lines:
    """Return what a terminal shows of a run."""
    run = shown.run
    title = f"{method_title(run.config)} on {in_words(data_title(run.config))}, seed {run.seed}"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("")
    for name in ("first", "before", "last"):
        table.add_column(name, justify="right")
    table.add_column("")
    for column, (name, factor, form) in SHOWN.items():
        values = factor * run.metrics[column]
        values = values[np.isfinite(values)]
        if len(values):
            chosen = [values[0], values[-2] if len(values) > 1 else values[-1], values[-1]]
            table.add_row(name, *map(form.format, chosen), curve(values))
    parts: list[Any] = [Text(one_line(title), style="bold"), Text(one_line(str(run.path)))]
    parts += [Text(f"{progress(shown)}, {shown.state}"), Text(""), table, Text("")]
    return Lines(*parts, *_log_lines(shown.log))


def _log_lines(lines: Sequence[str]) -> list[Text]:
    return [
        Text(one_line(line, 160), style="yellow" if line.startswith("warning") else "dim")
        for line in lines
    ]


def _state(path: Path) -> str:
    """Whether a process holds the lock of the run directory; a run holds its log's to the end."""
    try:
        descriptor = os.open(path / "log.txt", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return ENDED
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return GOING
    finally:
        os.close(descriptor)  # and with it the lock
    return ENDED


def _end_of_log(path: Path) -> list[str]:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
            return file.read(LOG_BYTES).decode("utf-8", "replace").splitlines()[-LOG_LINES:]
    except OSError:
        return []


# Type of the time between two looks.
SECONDS = number(float, "from 0.1 to 3600 seconds", lambda value: 0.1 <= value <= 3600)


def main(words: Sequence[str] | None = None) -> int:
    """Run ``python -m mpifed.watch``."""
    return carried_out("mpifed.watch", lambda: _run(words))


def _run(words: Sequence[str] | None) -> int:
    options = parser().parse_args(words)
    if not os.path.isfile(options.run_dir / "config.yaml"):
        raise InputError(f"'{options.run_dir}' holds no run: there is no config.yaml in it")
    try:
        last = _in_terminal(options) if sys.stdout.isatty() else _line_by_line(options)
    except KeyboardInterrupt:
        return EXIT_FINISHED
    print(f"{options.run_dir}: {last.state}", flush=True)
    return EXIT_FINISHED if last.going or last.run.finished else EXIT_FAILED


def follow(path: Path, every: float, once: bool, show: Callable[[View], None]) -> View:
    """Show a run until it ends."""
    while True:
        now = view(path)
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
    made = parser_of("watch", __doc__)
    made.add_argument("run_dir", type=Path, metavar="RUN", help="a run directory")
    made.add_argument(
        "--every", type=SECONDS, default=2.0, metavar="SECONDS", help="between two looks; 2"
    )
    made.add_argument("--once", action="store_true", help="show the run as it is now, and end")
    return made


if __name__ == "__main__":
    sys.exit(main())
