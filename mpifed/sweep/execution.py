"""Runs of a sweep, carried out one after the other or several at a time."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType

from mpifed.errors import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED, InputError
from mpifed.results.results import read_metrics, read_summary
from mpifed.sweep.plan import Planned

# Columns of which the first with a number is printed for a run without an accuracy.
IN_THEIR_PLACE = ("objective", "l2_uvp", "test_loss")

# Seconds between two looks at the runs in progress.
LOOK = 0.05


@dataclass
class Going:
    """A run in progress."""

    number: int
    process: subprocess.Popen[bytes]
    began: float


def execute(runs: Sequence[Planned], commands: Sequence[Sequence[str]], jobs: int = 1) -> int:
    """Carry out what is not finished, in order."""
    return _Sweep(runs, commands, jobs).run()


class _Sweep:
    def __init__(
        self, runs: Sequence[Planned], commands: Sequence[Sequence[str]], jobs: int
    ) -> None:
        self.runs, self.commands = runs, commands
        self.waiting = list(range(len(runs)))
        self.places: list[Going | None] = [None] * jobs
        self.processors = shares(jobs)
        self.seconds: list[float] = []
        self.failed: set[int] = set()
        self.stopping = self.stopped = False

    def run(self) -> int:
        directory = self.runs[0].directory.parent
        # Private as the run directories in it, unless the user made it before.
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._passing_requests():
            while self.waiting or self._going():
                if not self.stopping:
                    self._fill()
                self._collect()
                if self.stopping and not self._going():
                    break
        if self.stopped or self.waiting:
            return EXIT_STOPPED
        done = len(self.runs) - len(self.failed)
        print(f"{done} of {len(self.runs)} runs are finished in {directory}")
        return EXIT_FAILED if self.failed else EXIT_FINISHED

    def _going(self) -> list[Going]:
        return [one for one in self.places if one is not None]

    def _fill(self) -> None:
        """Start runs wherever a place is free."""
        for place, going in enumerate(self.places):
            if going is None and (number := self._next()) is not None:
                self._say(number, "started")
                process = subprocess.Popen(self.commands[number], stdin=subprocess.DEVNULL)
                if self.processors is not None:
                    with contextlib.suppress(OSError):  # it has ended already
                        os.sched_setaffinity(process.pid, self.processors[place])
                self.places[place] = Going(number, process, time.perf_counter())

    def _next(self) -> int | None:
        """Take the first run that can begin from those that wait."""
        busy = {self.runs[one.number].directory for one in self._going()}
        to_come = {self.runs[number].directory for number in self.waiting}
        for number in list(self.waiting):
            run = self.runs[number]
            if run.finished():
                self.waiting.remove(number)
                self._say(number, "finished before, skipped")
                continue
            missing = run.waits_for()
            if missing is None:
                self.waiting.remove(number)
                return number
            if missing not in busy | to_come:
                self.waiting.remove(number)
                to_come.discard(run.directory)
                self.failed.add(number)
                why = (
                    f"not started, since {missing.name}, from which it would start, is not finished"
                )
                self._say(number, why, error=True)
        return None

    def _collect(self) -> None:
        """Wait until a run has ended, and report each that has."""
        while (going := self._going()) and all(one.process.poll() is None for one in going):
            time.sleep(LOOK)
        for place, one in enumerate(self.places):
            if one is not None and one.process.poll() is not None:
                self.places[place] = None
                self._report(one, int(one.process.returncode))

    def _report(self, one: Going, code: int) -> None:
        run, seconds = self.runs[one.number], time.perf_counter() - one.began
        took = f"{seconds:.1f} s"
        if code == EXIT_STOPPED:
            self.stopping = self.stopped = True
            said = f"stopped on request after {took}; the same command continues"
            self._say(one.number, said)
        elif run.finished():
            self.seconds.append(seconds)
            self._say(one.number, f"finished in {took}{_result(run)}{self._left()}")
        else:
            self.failed.add(one.number)
            how = "diverged" if _diverged(run) else f"failed with exit code {code}"
            self._say(one.number, f"{how} after {took}", error=True)

    def _left(self) -> str:
        """Return the time that the runs to come will take if they are like those before."""
        each = sum(self.seconds) / len(self.seconds)
        left = sum(not self.runs[number].finished() for number in self.waiting) * each
        left += sum(max(0.0, each - time.perf_counter() + one.began) for one in self._going())
        return f"; about {in_words(left / len(self.places))} left" if left else ""

    def _say(self, number: int, what: str, error: bool = False) -> None:
        name = f"[{number + 1}/{len(self.runs)}] {self.runs[number].directory.name}"
        print(f"{name}: {what}", file=sys.stderr if error else sys.stdout, flush=True)

    @contextlib.contextmanager
    def _passing_requests(self) -> Iterator[None]:
        """Pass a request to stop on to the runs in progress, within the block."""

        def pass_on(number: int, frame: FrameType | None) -> None:
            self.stopping = True
            for one in self._going():
                one.process.send_signal(signal.SIGUSR1)

        before = {
            request: signal.signal(request, pass_on) for request in (signal.SIGTERM, signal.SIGUSR1)
        }
        try:
            yield
        finally:
            for request, handler in before.items():
                signal.signal(request, handler)


def shares(jobs: int) -> list[set[int]] | None:
    """Divide the processors of this process among jobs."""
    if jobs == 1 or not hasattr(os, "sched_getaffinity"):
        return None
    own = sorted(os.sched_getaffinity(0))
    if len(own) < jobs:
        return None
    ends = [len(own) * place // jobs for place in range(jobs + 1)]
    return [set(own[a:b]) for a, b in itertools.pairwise(ends)]


def in_words(seconds: float) -> str:
    """Return a time in the unit that suits it."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _diverged(run: Planned) -> bool:
    with contextlib.suppress(InputError):
        return bool(read_summary(run.directory / "summary.json")["status"] == "diverged")
    return False


def _result(run: Planned) -> str:
    accuracy = read_summary(run.directory / "summary.json").get("test_accuracy")
    if isinstance(accuracy, float):
        return f", test accuracy {accuracy:.4f}"
    found = read_metrics(run.directory / "metrics.csv")
    last = dict(zip(found.columns, found.rows[-1], strict=True))
    measured = next((name for name in IN_THEIR_PLACE if last.get(name)), None)
    return f", {measured.replace('_', ' ')} {float(last[measured]):.6g}" if measured else ""
