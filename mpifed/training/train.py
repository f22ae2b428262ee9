"""One run, from its first round or from a checkpoint, to its summary; the plan of ``--dry-run``."""

from __future__ import annotations

import functools
import logging
import math
import resource
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch

from mpifed.checkpoint import files as checkpoint
from mpifed.command import physical_cores, say
from mpifed.errors import (
    Diverged,
    InputError,
    PeerDiverged,
    PeerFailure,
    RunError,
    note,
    one_line,
)
from mpifed.exchange.accounting import EPSILON
from mpifed.exchange.server import Server
from mpifed.federation.participation import is_drawn
from mpifed.io.memory import enough_memory
from mpifed.mpi.agreement import agree
from mpifed.results.results import DIGEST, FINISHED, STOPPED_AT, metrics_in
from mpifed.training import evaluation, exchanging
from mpifed.training import request as resume
from mpifed.training.build import describe_model
from mpifed.training.callbacks import Callback, Progress, listeners_of
from mpifed.training.engine import Clock, Engine, advice
from mpifed.training.evaluation import VALIDATION_COLUMNS, columns_of, count_scored
from mpifed.training.footprint import sample_bytes_by_rank, state_bytes
from mpifed.training.request import Task
from mpifed.training.run_directory import REPLACED, Recorder
from mpifed.training.setup import Setup
from mpifed.training.simulated_time import COLUMN, taking_part
from mpifed.training.stopping import Stopping, stopping_of
from mpifed.training.validation import sum_on_host
from mpifed.watchdog.heartbeat import stop_requests_from
from mpifed.watchdog.launcher import launched_rank
from topologies.memory_limits import in_bytes

# Keys of summary.json that tell of the computer and of the ranks, or that only a retimed run has.
MEASURED = {
    *("ranks", "seconds", "peak_memory_bytes", "imbalance", "mpi_bytes_sent", "versions"),
    *("retimed", "graph"),  # which runs of earlier versions lack
    *("stopped_by", "best_round"),
}


def began_as(setup: Setup, engine: Engine, status: str) -> dict[str, Any]:
    """Return how summary.json begins, all that it has where a run diverged; not collective."""
    return {
        "status": status,
        "experiment": setup.experiment,
        "algorithm": setup.method.name,
        "rounds": engine.round,
        "ranks": setup.federation.communicator.size,
        "clients": setup.federation.n_clients,
    }


def summary_of(setup: Setup, engine: Engine, status: str) -> dict[str, Any]:
    """Return the content of summary.json but the versions; collective."""
    communicator = setup.federation.communicator
    seconds = dict(engine.clock.seconds)
    seconds["total"] = seconds["startup"] + seconds["data"] + engine.elapsed
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    slowest = communicator.max(np.array([*seconds.values(), float(peak)]))
    every = communicator.gather_object(seconds["local"])
    local = [every[rank] for rank in np.unique(setup.federation.owner)] if every else [0.0]
    sent = int(communicator.sum(np.array([communicator.bytes_sent], np.int64))[0])
    digest, scores, ledger = engine.digest(), engine.scores, setup.exchange.ledger
    predicted = graph = None
    if scores.get("consensus_distance") is not None:  # of gossip, on rank 0
        predicted = exchanging.predicted_contraction(setup.exchange, engine.round)
        graph = exchanging.graph(setup.exchange, engine.round, predicted)
    return {
        **began_as(setup, engine, status),
        "test_accuracy": scores.get("test_accuracy"),
        "test_accuracy_p10": scores.get("test_accuracy_p10"),
        "test_loss": scores.get("test_loss"),
        **{name: scores[name] for name in VALIDATION_COLUMNS if name in scores},
        **({"scored_clients": count_scored(setup)} if setup.evaluation.sample < 1 else {}),
        "state_digest": digest,
        "seconds": {
            phase: round(float(value), 3)
            for phase, value in zip(seconds, slowest[:-1], strict=True)
        },
        "peak_memory_bytes": int(slowest[-1]),
        "imbalance": round(max(local) * len(local) / sum(local), 4) if sum(local) else None,
        "mpi_bytes_sent": sent,
        "up_bits": ledger.up_bits,
        "down_bits": ledger.down_bits,
        **({COLUMN: engine.simulated.seconds} if engine.simulated is not None else {}),
        **({EPSILON: engine.accountant(engine.round)} if engine.accountant is not None else {}),
        "predicted_contraction": predicted,
        **({"graph": graph} if graph is not None else {}),
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that determine a run's numbers."""
    import platform

    packages = ("mpifed", "torch", "numpy", "scipy", "h5py", "networkx", "mpi4py")
    versions = {"python": platform.python_version(), **{name: _version(name) for name in packages}}
    if "mpi4py.MPI" in sys.modules:
        library, numbers = sys.modules["mpi4py.MPI"].get_vendor()
        versions["mpi"] = f"{library} {'.'.join(map(str, numbers))}"
    return versions


@functools.cache
def _version(package: str) -> str:
    """The descriptions of packages are long, and a process may run hundreds of short runs."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def train(
    setup: Setup,
    task: Task,
    recorder: Recorder | None,
    clock: Clock,
    stop_requested: Callable[[], bool],
    *,
    quiet: bool = False,
    one_line: bool = False,
    on_round: Callback | str | None = None,
    track: str | None = None,
) -> str:
    """Run to the last round, or to a stop; ``recorder`` is that of rank 0. Collective."""
    communicator = setup.federation.communicator
    speaks = communicator.rank == 0 and not quiet
    early = partial(stop_requests_from, stop_requested)
    with listening(say if speaks else None) as warned, ExitStack() as at_the_end:
        with clock.measure("data"), early():
            loading = enough_memory("the samples of the clients hosted here")
            shards = agree(communicator, loading(setup.hosted_shards))
        making = enough_memory("the state of the clients hosted here")
        engine = agree(communicator, making(partial(Engine, setup, shards, clock, task.output)))
        if task.point is not None:
            engine.restore(task.point.path, task.point.meta)
            _check_digest(engine, task.point)
        else:
            with early():
                agree(communicator, engine.prepare)
        of_evaluation = partial(evaluation.remarks, setup, engine.state, shards)
        remarks = agree(communicator, of_evaluation)
        begin = partial(_begin, recorder, setup, task, engine.writer.settle)
        engine.stopping = agree(communicator, begin)
        progress = None
        if recorder is not None:
            at_the_end.callback(recorder.close)
            arguments = engine.round + 1, setup.rounds, quiet, recorder.log
            progress = Progress(*arguments, one_line=one_line)
            at_the_end.callback(progress.close)
            for line in [*_opening(setup, task), *remarks]:
                progress.say(line)
        first = engine.round + 1 if task.point is not None else 0
        engine.report = listeners = listeners_of(recorder, first, setup.rounds, on_round, track)
        at_the_end.callback(listeners.close, "failed")
        try:
            if engine.round == setup.rounds:  # resumed at its end
                engine.active = int(taking_part(setup, engine.round).sum())
                engine.evaluate(recorder, progress)
            status = engine.run(task.output, recorder, progress, stop_requested)
        except (InputError, RunError) as error:
            hint = ""
            if isinstance(error, Diverged):
                hint = f"; {advice(setup.algorithm)}"
                if recorder is not None:
                    recorder.finish(began_as(setup, engine, "diverged"))
            kind = InputError if isinstance(error, InputError) else RunError
            raise kind(f"round {engine.round}: {error}{hint}") from error
        except (PeerFailure, KeyboardInterrupt) as error:
            if recorder is not None and isinstance(error, PeerDiverged):
                recorder.finish(began_as(setup, engine, "diverged"))
            raise
        except BaseException as error:  # a user's component may raise anything
            note(error, f"round {engine.round}")
            raise
        summary = summary_of(setup, engine, status)
        # Their time is not the run's, and their warnings are in the log.
        listeners.close("stopped" if status == "stopped" else FINISHED)
        every = communicator.gather_object(warned)
        if recorder is not None and progress is not None and every is not None:
            lines = [
                f"warning on rank {rank}: {line}"
                for rank, of_rank in enumerate(every)
                for line in dict.fromkeys(of_rank)
            ]
            for line in lines:
                recorder.log(line)
            if communicator.size > 1:
                progress.say(
                    f"the busiest rank trained {summary['imbalance']} times as long as the mean"
                )
            ending: dict[str, Any] = {"stopped_by": engine.reason} if status == STOPPED_AT else {}
            if engine.stopping is not None and engine.stopping.stored_round is not None:
                ending["best_round"] = engine.stopping.stored_round
            recorder.finish({**summary, **ending, "versions": describe_versions()})
            count = f" ({len(lines)} warning{'s' * (len(lines) > 1)} in log.txt)" if lines else ""
            where, goes_on = status, ""
            if status == "stopped":
                goes_on = f"; mpifed run --resume --output {task.output} continues it"
            elif status == STOPPED_AT:
                where = f"{status} round {engine.round}, since {engine.reason}"
            progress.say(f"{where}: {task.output}{count}{goes_on}")
        communicator.barrier()
    return status


class _Listener(logging.Handler):
    """Collects warnings of mpifed's log, and passes other messages on at once."""

    def __init__(self, messages: list[str], say: Callable[[str], None] | None) -> None:
        super().__init__(logging.INFO)
        self._messages, self._say = messages, say

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            self._messages.append(record.getMessage())
        elif self._say is not None:
            self._say(record.getMessage())


@contextmanager
def listening(say: Callable[[str], None] | None = None) -> Iterator[list[str]]:
    """Collect warnings within the block; yields the list of those of Python and mpifed's log."""
    messages: list[str] = []
    listener, log = _Listener(messages, say), logging.getLogger("mpifed")
    level = log.level
    log.setLevel(logging.INFO if say is not None else level)
    log.addHandler(listener)
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *arguments, **keywords: messages.append(
                str(message)
            )
            yield messages
    finally:
        log.removeHandler(listener)
        log.setLevel(level)


def _check_digest(engine: Engine, point: resume.ResumePoint) -> None:
    """Raise ``RunError`` where the restored state differs from the recorded digest; collective."""
    digest = engine.digest()
    if digest is None:
        return
    recorded = metrics_in(point.meta.metrics)
    digests = dict(zip(recorded.texts("round"), recorded.texts(DIGEST), strict=True))
    expected = digests.get(str(point.meta.round), digest)
    if expected != digest:
        raise RunError(
            f"{point.path} does not give back the state of round {point.meta.round}: its digest is "
            f"{digest}, but {expected} was recorded; was it written by another version of mpifed?"
        )


def _begin(
    recorder: Recorder | None, setup: Setup, task: Task, settle: Callable[[], None]
) -> Stopping | None:
    """Begin the run directory on rank 0; return what stops the run, of its rows so far."""
    if recorder is None:
        return None
    columns, point = columns_of(setup), task.point
    rows = resume.kept_rows(point.meta, setup.rounds, columns) if point else []
    aside = list(REPLACED) if task.restart else []
    is_new = point is None and task.stored is None and not task.restart
    if point is not None and point.passed_over:
        every, intact = checkpoint.checkpoints_in(point.path.parent), point.meta.round
        aside = [f"checkpoints/{path.name}" for path in every if checkpoint.round_of(path) > intact]
    recorder.begin(columns, rows, settle, is_new, aside)
    return stopping_of(setup, columns, rows)


def _opening(setup: Setup, task: Task) -> list[str]:
    federation, size = setup.federation, setup.federation.communicator.size
    lines = [
        f"{setup.experiment}: {setup.method.name}, {federation.n_clients} clients on {size} "
        f"rank{'s' if size > 1 else ''}, {setup.rounds} rounds"
    ]
    idle = size - len(np.unique(federation.owner))
    if idle:
        lines.append(f"{idle} of {size} ranks have no client and idle")
    lines += task.remarks
    if task.point is not None:
        lines.append(f"resumed from {task.point.path.name} after round {task.point.meta.round}")
    return lines


def plan_lines(setup: Setup) -> list[str]:
    """Return the lines of ``--dry-run``: clients per rank, memory, bytes of a round; collective."""
    federation, description = setup.federation, setup.dataset.description
    counts = np.bincount(federation.owner, minlength=federation.communicator.size)
    itemsize = setup.dtype.itemsize
    inputs = math.prod(description.input_shape)
    bytes_of_rank = _samples(setup)
    _, bytes_here = sum_on_host(federation.communicator, bytes_of_rank)
    (bytes_of_node,) = federation.communicator.max(np.array([bytes_here]))
    states = _states(setup)
    _, states_here = sum_on_host(federation.communicator, states)
    (states_of_node,) = federation.communicator.max(np.array([states_here]))
    payload = setup.algorithm.payload() * itemsize
    participants = len(federation.training)
    idle = federation.communicator.size - int(np.count_nonzero(counts))
    spare = f"; {idle} rank{'s' * (idle > 1)} without clients" if idle else ""
    validation = ""
    if setup.evaluation.validates:
        validation = f", {int(description.n_val.sum()):,} validation"
    return [
        f"data        {one_line(description.source, 200)}: {description.n_clients} clients, "
        f"{int(description.n_train.sum()):,} training{validation} and "
        f"{int(description.n_test.sum()):,} test samples, {inputs} inputs, "
        f"{description.n_classes} classes",
        f"clients     {participants} in training, {int(federation.unseen.sum())} unseen; "
        f"per rank: {_range(counts)}{spare}",
        f"memory      {_range(bytes_of_rank)} bytes of samples per rank, up to "
        f"{int(bytes_of_node):,} on a node",
        f"            weights, gradients and moments: about {in_bytes(float(states.max()))} "
        f"per rank, {in_bytes(float(states_of_node))} on a node",
        f"model       {describe_model(setup.model)}; a message has {payload:,} bytes",
        *exchanging.describe(setup.exchange, payload, itemsize),
    ]


def _samples(setup: Setup) -> np.ndarray:
    """Return the bytes of the clients' samples on each rank."""
    description = setup.dataset.description
    samples, shape = description.n_samples, description.input_shape
    return sample_bytes_by_rank(setup.federation, samples, shape, setup.dtype)


def _states(setup: Setup) -> np.ndarray:
    """Return the bytes of the clients' states on each rank."""
    parts = setup.federation, setup.model, setup.algorithm, setup.solver, setup.dtype
    return state_bytes(*parts, setup.exchange.shared_is_rows)


def plan_of(setup: Setup) -> dict[str, Any]:
    """Return the numbers of ``--dry-run`` for programs, the same on every rank."""
    federation, description = setup.federation, setup.dataset.description
    counts = np.bincount(federation.owner, minlength=federation.communicator.size)
    return {
        "ranks": federation.communicator.size,
        "clients": federation.n_clients,
        "clients_in_training": len(federation.training),
        "clients_by_rank": counts.tolist(),
        "training_samples": int(description.n_train.sum()),
        "validation_samples": int(description.n_val.sum()),
        "test_samples": int(description.n_test.sum()),
        "sample_bytes_by_rank": [int(each) for each in _samples(setup)],
        "state_bytes_by_rank": [int(each) for each in _states(setup)],
        "message_bytes": setup.algorithm.payload() * setup.dtype.itemsize,
    }


def remarks(setup: Setup) -> list[str]:
    """Return lines for the log about data, model, weights and exchange, the same on every rank."""
    payload = setup.algorithm.payload()
    return [
        *_of_cores(setup),
        *setup.dataset.remarks,
        *_of_weights(setup),
        *_of_schedule(setup),
        *(exchanging.remarks(setup.exchange, payload, setup.rounds) if payload else []),
    ]


def _of_cores(setup: Setup) -> list[str]:
    """Return a line where cores of this computer lie idle."""
    federation, idle = setup.federation, physical_cores() - torch.get_num_threads()
    is_alone = federation.communicator.size == 1 and launched_rank() is None
    if is_alone and setup.device.type == "cpu" and idle > 0 and federation.n_clients > 1:
        return [
            f"{idle} core{'s are' if idle > 1 else ' is'} idle; --ranks auto (in Python, "
            "ranks='auto') uses all and gives the same numbers"
        ]
    return []


def _of_schedule(setup: Setup) -> list[str]:
    """Return a line where the learning rate becomes 0 before the last round, or begins lower than
    ``local.lr`` by the steps of ``multi_step``.
    """
    options, horizon, rounds = setup.solver.options, setup.solver.horizon, setup.rounds
    by_round = options.lr_clock == "round"
    is_over = rounds > horizon
    if not by_round:
        is_over = options.steps is not None or rounds * options.epochs > horizon
    unit = "rounds" if by_round else "local epochs"
    if options.lr_schedule == "multi_step" and horizon < 4:
        return [
            f"local.lr_schedule is multi_step over {horizon} {unit}, of which 3 floor(R/4) is 0: "
            f"the learning rate begins at local.lr / {100 if horizon == 1 else 10}"
        ]
    if options.lr_schedule != "cosine" or not is_over:
        return []
    return [
        f"local.lr_schedule is cosine over {horizon} {unit}: the learning rate is 0 after them; "
        "reschedule=true spreads it over all rounds on a resume"
    ]


def _of_weights(setup: Setup) -> list[str]:
    """Return a line where a server's weights may differ from what is expected."""
    federation, exchange = setup.federation, setup.exchange
    if not isinstance(exchange, Server) or not setup.algorithm.communicates:
        return []
    if federation.inclusion == 1 or not is_drawn(federation.participation):
        return []
    n_train = federation.n_train[federation.training]
    plain = exchange.average_over == "participants" and not federation.is_unbiased
    by_samples = setup.method.options.get("client_weights", "samples") == "samples"
    plain = plain and by_samples and setup.algorithm.aggregates != "sums"
    if not plain or n_train.min() == n_train.max():
        return []
    return [
        f"clients have {_range(n_train)} training samples and take part with probability "
        f"{federation.inclusion:.4g}: an average renormalised over participants counts large "
        "clients for less than their share of all samples; participation.weights=unbiased does not"
    ]


def _range(values: np.ndarray) -> str:
    low, high = int(values.min()), int(values.max())
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
