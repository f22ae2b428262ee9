"""Runs of a sweep as processes, several at a time."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from types import FrameType

from mpifed.command import say
from mpifed.errors import EXIT_FAILED, EXIT_FINISHED, EXIT_STOPPED, InputError, complain
from mpifed.results.results import read_summary
from mpifed.sweep.plan import Planned

# Seconds between two looks at the runs in progress.
LOOK = 0.05


@dataclass
class Going:
    """A run in progress."""

    number: int
    process: subprocess.Popen[bytes]
    began: float


class Sweep:
    """Runs that are carried out in order, several at a time."""

    def __init__(
        self,
        runs: Sequence[Planned],
        commands: Sequence[Sequence[str]],
        jobs: int = 1,
        environment: Mapping[str, str] | None = None,
        total: int | None = None,
    ) -> None:
        self.runs, self.commands, self.environment = list(runs), list(commands), environment
        self.total = total or len(runs)
        self.waiting = list(range(len(runs)))
        self.jobs = min(jobs, self.total)
        self.processors = processor_sets(self.jobs)
        self.going: dict[int, Going] = {}
        self.seconds: list[float] = []
        self.failed: set[int] = set()
        self.stopping = self.stopped = False

    def run(self) -> int:
        """Carry out what is not finished; return the exit code."""
        with self._passing_requests():
            while self._start():
                self._collect()
        if self.stopped or self._to_come():
            return EXIT_STOPPED
        done = self.total - len(self.failed)
        print(f"{done} of {self.total} runs are finished in {self.runs[0].directory.parent}")
        return EXIT_FAILED if self.failed else EXIT_FINISHED

    def _start(self) -> bool:
        """Start runs wherever a place is free; return whether any is in progress."""
        free = [slot for slot in range(self.jobs) if slot not in self.going]
        while free and not self.stopping and (number := self._next()) is not None:
            slot = free.pop(0)
            self._say(number, "started")
            process = subprocess.Popen(
                self.commands[number],
                stdin=subprocess.DEVNULL,
                env=self._environment_of(number),
            )
            if self.processors is not None:
                with contextlib.suppress(OSError):  # it has ended already
                    os.sched_setaffinity(process.pid, self.processors[slot])
            self.going[slot] = Going(number, process, time.perf_counter())
        return bool(self.going)

    def _next(self) -> int | None:
        """Take the first run that can begin from those that wait."""
        busy = {self.runs[one.number].directory for one in self.going.values()}
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
                why = f"since {missing.name}, from which it would start, is not finished"
                self._say(number, f"not started, {why}", error=True)
        return None

    def _collect(self) -> None:
        """Wait until a run has ended, and report each that has."""
        while all(one.process.poll() is None for one in self.going.values()):
            time.sleep(LOOK)
        for slot, one in list(self.going.items()):
            if one.process.poll() is not None:
                del self.going[slot]
                self._report(one, int(one.process.returncode))

    def _report(self, one: Going, code: int) -> None:
        run, seconds = self.runs[one.number], time.perf_counter() - one.began
        took = f"{seconds:.1f} s"
        early = self.stopping and code == -signal.SIGUSR1  # before it could take requests
        if code == EXIT_STOPPED or early:
            self.stopping = self.stopped = True
            outcome = f"stopped on request after {took}; the same command continues"
            self._say(one.number, outcome)
        elif run.finished():
            self.seconds.append(seconds)
            self._say(one.number, f"{self._outcome(one.number, took)}{self._left()}")
        else:
            self.failed.add(one.number)
            how = "diverged" if diverged(run) else f"failed with exit code {code}"
            self._say(one.number, f"{how} after {took}", error=True)

    def _environment_of(self, number: int) -> Mapping[str, str] | None:
        """Return the environment variables of a run."""
        return self.environment

    def _outcome(self, number: int, took: str) -> str:
        """Return how a run has ended that is finished."""
        return f"finished in {took}{_result(self.runs[number])}"

    def _to_come(self) -> int:
        """Return the number of runs that are still to start."""
        return sum(not self.runs[number].finished() for number in self.waiting)

    def _left(self) -> str:
        """Return the time that the runs to come will take if they are like those before."""
        each = sum(self.seconds) / len(self.seconds)
        left = self._to_come() * each
        left += sum(max(0.0, each - time.perf_counter() + one.began) for one in self.going.values())
        left = math.ceil(left / self.jobs)
        return f"; about {timedelta(seconds=left)} left" if left else ""

    def _say(self, number: int, what: str, error: bool = False) -> None:
        name = f"[{number + 1}/{self.total}] {self.runs[number].directory.name}"
        complain(name, what) if error else say(f"{name}: {what}")

    @contextlib.contextmanager
    def _passing_requests(self) -> Iterator[None]:
        """Pass a request to stop on to the runs in progress, within the block."""

        def pass_on(number: int, frame: FrameType | None) -> None:
            self.stopping = True
            for one in self.going.values():
                one.process.send_signal(signal.SIGUSR1)

        requests = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
        before = {request: signal.signal(request, pass_on) for request in requests}
        try:
            yield
        finally:
            for request, handler in before.items():
                signal.signal(request, handler)


def processor_sets(jobs: int) -> list[set[int]] | None:
    """Divide the processors of this process among jobs."""
    processors = sorted(os.sched_getaffinity(0))
    if jobs == 1 or len(processors) < jobs:
        return None
    return [
        set(processors[len(processors) * k // jobs : len(processors) * (k + 1) // jobs])
        for k in range(jobs)
    ]


def diverged(run: Planned) -> bool:
    """Return whether the last part of a run has ended with values that are not finite."""
    with contextlib.suppress(InputError):
        return bool(read_summary(run.directory / "summary.json")["status"] == "diverged")
    return False


def _result(run: Planned) -> str:
    accuracy = read_summary(run.directory / "summary.json").get("test_accuracy")
    return "" if accuracy is None else f", test accuracy {accuracy:.4f}"
