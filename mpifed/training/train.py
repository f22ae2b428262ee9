"""One run, from its first round or from a checkpoint, to its summary."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from mpifed.config.configuration import to_yaml
from mpifed.errors import (
    AgreedStop,
    Diverged,
    InputError,
    PeerDiverged,
    PeerFailure,
    RunError,
    note,
)
from mpifed.io.memory import enough_memory
from mpifed.mpi.agreement import agree
from mpifed.training import resume
from mpifed.training.asynchronous import taking_part
from mpifed.training.build import Setup
from mpifed.training.callbacks import hearers_of
from mpifed.training.clock import Clock
from mpifed.training.costs import seconds_of_clients
from mpifed.training.divergence import advice
from mpifed.training.engine import Engine
from mpifed.training.evaluation import columns_of
from mpifed.training.progress import Progress
from mpifed.training.request import Request, Task, refuse_overtaken
from mpifed.training.resume import line_of_resume
from mpifed.training.run_directory import Recorder
from mpifed.training.samples import Samples, samples_of
from mpifed.training.summary import of_diverged, summary_of
from mpifed.training.versions import describe_versions
from mpifed.watchdog.stop_requests import stop_requests_from


def train(
    setup: Setup, task: Task, request: Request, clock: Clock, stop_requested: Callable[[], bool]
) -> str:
    """Run to the last round, or stop on request; collective."""
    communicator, quiet = setup.federation.communicator, request.quiet
    say = partial(print, flush=True) if communicator.rank == 0 and not quiet else None
    with listening(say) as heard, ExitStack() as at_the_end:
        with clock.measure("data"):
            samples = agree(communicator, partial(_load, setup))
        engine = agree(communicator, partial(_engine, setup, samples, clock, task.output))
        if task.point is not None:
            engine.restore(task.point.path, task.point.meta)
            _check_digest(engine, task.point)
        else:
            try:
                with stop_requests_from(stop_requested):
                    agree(communicator, engine.prepare)
            except AgreedStop as stopped:
                if say is not None:
                    say(str(stopped))
                return "stopped"
        remarks = agree(communicator, engine.remarks)
        recorder = agree(communicator, lambda: _recorder(setup, task, engine.writer.settle))
        progress = None
        if recorder is not None:
            at_the_end.callback(recorder.close)
            about = engine.round + 1, setup.configuration.rounds, quiet, recorder.log
            progress = Progress(*about, one_line=request.progress)
            at_the_end.callback(progress.close)
            for line in [*_opening(setup, task), *remarks]:
                progress.say(line)
        engine.tell = hearers = hearers_of(setup, task, request, engine.round)
        at_the_end.callback(hearers.close, "failed")
        try:
            if engine.round == setup.configuration.rounds:
                _evaluate_again(engine, recorder, progress)
            status = engine.run(task.output, recorder, progress, stop_requested)
        except (InputError, RunError) as error:
            more = ""
            if isinstance(error, Diverged):
                more = f"; {advice(setup.algorithm)}"
                if recorder is not None:
                    recorder.finish(of_diverged(setup, engine))
            kind = InputError if isinstance(error, InputError) else RunError
            raise kind(f"round {engine.round}: {error}{more}") from error
        except (PeerFailure, BrokenPipeError, KeyboardInterrupt) as error:
            if recorder is not None and isinstance(error, PeerDiverged):
                recorder.finish(of_diverged(setup, engine))
            raise
        except BaseException as error:  # a user's component may raise anything
            note(error, f"round {engine.round}")
            raise
        summary = summary_of(setup, engine, status)
        hearers.close(status)  # whose time is not the run's, and whose warnings are in the log
        every = communicator.gather_object(heard)
        whose = setup.configuration, setup.dataset.description, setup.federation
        costs = seconds_of_clients(*whose, engine.clock.seconds["local"] / max(1, engine.round))
        if recorder is not None and progress is not None and every is not None:
            said = [
                f"warning on rank {rank}: {line}"
                for rank, lines in zip(communicator.numbers, every, strict=True)
                for line in dict.fromkeys(lines)
            ]
            for line in said:
                recorder.log(line)
            if costs is not None:
                recorder.timing(costs)
            if communicator.size > 1:
                progress.say(f"local seconds, largest over mean: {summary['imbalance']}")
            recorder.finish({**summary, "versions": describe_versions()})
            count = f" ({len(said)} warning{'s' * (len(said) > 1)} in log.txt)" if said else ""
            progress.say(f"{status}: {task.output}{count}")
        communicator.barrier()
    return status


def _load(setup: Setup) -> Samples:
    with enough_memory("the samples of the clients hosted here"):
        return samples_of(setup)


def _engine(setup: Setup, samples: Samples, clock: Clock, output: Path) -> Engine:
    with enough_memory("the state of the clients hosted here"):
        return Engine(setup, samples, clock, output)


class _Listener(logging.Handler):
    """Collects warnings of mpifed's log, and passes other messages on at once."""

    def __init__(self, heard: list[str], say: Callable[[str], None] | None) -> None:
        super().__init__(logging.INFO)
        self._heard, self._say = heard, say

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self._heard.append(record.getMessage())
        elif self._say is not None:
            self._say(record.getMessage())


@contextmanager
def listening(say: Callable[[str], None] | None = None) -> Iterator[list[str]]:
    """Collect warnings within the block; yields the list of those of Python and mpifed's log."""
    heard: list[str] = []
    listener, log = _Listener(heard, say), logging.getLogger("mpifed")
    level = log.level
    log.setLevel(logging.INFO if say is not None else level)
    log.addHandler(listener)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *rest, **more: heard.append(str(message))
            yield heard
    finally:
        log.removeHandler(listener)
        log.setLevel(level)


def _check_digest(engine: Engine, point: resume.ResumePoint) -> None:
    """Raise ``RunError`` where the restored state differs from the recorded digest; collective."""
    digest = engine.digest()
    if digest is None or not point.meta.rows:
        return
    last = dict(zip(point.meta.columns, point.meta.rows[-1], strict=True))
    if int(last["round"]) == point.meta.round and last["state_digest"] != digest:
        raise RunError(
            f"{point.path} does not give back the state of round {point.meta.round}: its digest is "
            f"{digest}, but {last['state_digest']} was recorded; was it written by another version "
            "of mpifed?"
        )


def _recorder(setup: Setup, task: Task, settle: Callable[[], None]) -> Recorder | None:
    """Return the recorder of the run directory on rank 0, None elsewhere."""
    if setup.federation.communicator.rank != 0:
        return None
    columns, point = columns_of(setup), task.point
    rows = resume.kept_rows(point.meta, setup.configuration, columns) if point else []
    configuration = to_yaml(setup.configuration)
    admit = partial(refuse_overtaken, task)
    return Recorder(task.output, columns, rows, configuration, settle, admit)


def _evaluate_again(engine: Engine, recorder: Recorder | None, progress: Progress | None) -> None:
    """Evaluate the last round of a run that is resumed at its end; collective."""
    engine.active = int(taking_part(engine.setup, engine.round).sum())
    engine.evaluate(recorder, progress)


def _opening(setup: Setup, task: Task) -> list[str]:
    configuration, federation = setup.configuration, setup.federation
    size, name = federation.communicator.job_size, configuration.algorithm.name
    lines = [
        f"{configuration.experiment}: {name}, {federation.n_clients} clients on {size} "
        f"rank{'s' if size > 1 else ''}, {configuration.rounds} rounds"
    ]
    idle = size - len(np.unique(federation.owner))
    if idle:
        lines.append(f"{idle} of {size} ranks have no client and idle")
    lines += task.remarks
    if task.point is not None:
        lines.append(line_of_resume(task.point))
    return lines
