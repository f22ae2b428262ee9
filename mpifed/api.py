"""The Python interface: ``mpifed.run`` runs an experiment, ``mpifed.load`` what it trained."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
import torch

from mpifed.checkpoint import files as checkpoint
from mpifed.command import ranks_for, say
from mpifed.components.registry import is_component, name_of
from mpifed.config.configuration import (
    Configuration,
    apply_overrides,
    decided,
    resolve,
    to_mapping,
    to_yaml,
)
from mpifed.config.experiments import naming_line, read_experiment
from mpifed.data.central import Passed
from mpifed.data.frames import with_samples
from mpifed.errors import AgreedInputError, InputError, PeerFailure, RunError, StopRequested
from mpifed.exchange.mixing_options import mixing_overrides
from mpifed.mpi.agreement import agree
from mpifed.mpi.communicator import Alone, Communicator, communicator_of, world
from mpifed.notebook import Result, read
from mpifed.results.results import STOPPED_AT
from mpifed.tracking import check_tracker
from mpifed.training.blame import code_error
from mpifed.training.build import make
from mpifed.training.callbacks import Callback, RecordedRound, callback
from mpifed.training.engine import Clock, computing_threads
from mpifed.training.evaluation import columns_of
from mpifed.training.on_ranks import check_ranks, run_on_ranks
from mpifed.training.request import (
    Request,
    Task,
    as_begun,
    base_configuration,
    check_resume,
    earlier_run,
    ended_before,
    task_of,
)
from mpifed.training.run_directory import Recorder
from mpifed.training.stopping import check_columns
from mpifed.training.train import listening, plan_lines, plan_of, remarks, train
from mpifed.training.trained import Trained, check_path, load
from mpifed.watchdog import heartbeat
from topologies.job_environment import is_rank

__all__ = ["RecordedRound", "Request", "Result", "Trained", "execute", "load", "read", "run"]


@contextmanager
def _input_errors() -> Iterator[None]:
    """Let a program see bad input, on which ranks agree, as the error that is documented."""
    try:
        yield
    except AgreedInputError as error:
        raise InputError(str(error)) from None


@_input_errors()
def run(
    experiment: str | Path | None = None,
    *,
    output: str | Path | None = None,
    resume: bool | str | Path | None = None,
    quiet: bool = True,
    topology: Any = None,
    weights: Any = None,
    schedule: Any = None,
    ranks: int | Literal["auto"] | None = None,
    progress: bool = False,
    on_round: Callback | str | None = None,
    track: str | None = None,
    restart: bool = False,
    comm: Any = None,
    **overrides: Any,
) -> Result:
    """Run an experiment with the same checks and the same run directory as the command.

    Collective: under MPI every rank, of the job or of ``comm``, calls it and gets the result.

    Parameters
    ----------
    experiment : str or Path, optional
        A shipped experiment or a YAML file. By default the stored configuration of a run that is
        resumed, FedAvg on the own data or with the own model that are passed, or
        ``synthetic-fedem``.
    output : str or Path, optional
        The run directory; ``runs/<experiment>-<timestamp>`` by default.
    resume : bool, str or Path, optional
        True continues from the newest intact checkpoint of ``output``, a path from that checkpoint
        or run directory.
    quiet : bool
        Whether nothing is printed.
    topology : networkx.Graph, str, path, callable or mapping, optional
        The graph of gossip, an undirected networkx graph with a node for each training client (in
        sorted order of its labels), a file (.graphml, .edges, .npz, .csv), a function of n that
        returns a graph, or what ``exchange.topology`` takes.
    weights : array_like, scipy sparse array, callable, str or mapping, optional
        The mixing matrix W, (n, n) with W[i, j] the weight that client i gives to the message from
        j, doubly stochastic; a function of the graph; or what ``exchange.weights`` takes.
    schedule : list of arrays, topologies.Schedule, callable, str or mapping, optional
        W^1, W^2, ... in turn; ``function(n, round, **options)`` that returns W^k as an array or as
        a graph; or what ``exchange.schedule`` takes. With any of these three the exchange is
        gossip.
    ranks : int or "auto", optional
        Start ``mpirun -n RANKS`` with processes of its own and wait for it; not within an MPI job.
        What is passed must then be importable and in files: neither components of the program
        itself nor arrays. With "auto" as many as there are physical cores, at most one a client.
    progress : bool
        Whether a quiet run shows its newest round in one line that is replaced in a terminal or a
        notebook; elsewhere a line for each recorded round.
    on_round : callable or str, optional
        Called on rank 0 with a ``RecordedRound`` after each recorded round, or the name of such a
        function. Where it returns True, the run stops there with a checkpoint and the status
        ``stopped_at``. What it raises ends the run.
    track : {'tensorboard', 'mlflow', 'wandb'}, optional
        Where recorded rounds are sent as well; see docs/tracking.md.
    restart : bool
        Begin anew in ``output``; what is there of a run is moved to ``replaced-1`` in it.
    comm : mpi4py.MPI.Intracomm, optional
        The ranks that run it, all of the job by default. Runs on communicators that share no rank
        go on side by side; give each an ``output``.
    **overrides
        Keys of the configuration. ``data`` may also be samples themselves: a table, a data set of
        torch or Hugging Face, or a mapping of clients to such; see ``mpifed.frame`` and
        ``mpifed.arrays``. ``evaluation.central`` may be a table or a pair (x, y). Those with
        dots are passed in a mapping: ``run("synthetic-fedem", **{"exchange.name": "gossip"})``.
        Classes and functions of the top level of a module stand for their names, also those of the
        program itself: ``model=build``.

    Returns
    -------
    Result
        The run directory and how the run ended.

    Raises
    ------
    InputError
        For a wrong configuration or input; nothing is written.
    RunError
        For a failure while running.
    """
    for name, path in (("experiment", experiment), ("output", output), ("resume", resume)):
        if path is not None and not (name == "resume" and isinstance(path, bool)):
            check_path(name, path)
    if comm is not None and ranks is not None:
        raise InputError("comm and ranks were given; at most one of them may be")
    if ranks == "auto":
        ranks = ranks_for(overrides.get("clients")) if not is_rank() else None
    if comm is not None:
        communicator = communicator_of(comm)
    else:
        communicator = world() if ranks is None else Alone()
    mixing = agree(communicator, lambda: mixing_overrides(topology, weights, schedule, overrides))
    overrides = {**overrides, **mixing}
    overrides = agree(communicator, lambda: with_samples(overrides))
    request = Request(
        os.fspath(experiment) if experiment is not None else None,
        {key: _plain(value, key) for key, value in overrides.items()},
        Path(output) if output is not None else None,
        Path(resume) if isinstance(resume, (str, Path)) else resume,
        quiet=quiet,
        progress=progress,
        on_round=on_round,
        track=track,
        restart=restart,
    )
    if ranks is not None:
        check_ranks(ranks)
        with naming_line(request.experiment, request.overrides or {}):
            mapping, task = _understood(request)
            return Result(*run_on_ranks(request, mapping, task.output, ranks))
    return execute(request, communicator, lambda: False)


def _plain(value: Any, key: str) -> Any:
    """Return what a program passes as the plain values that a configuration holds."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, torch.nn.Module):
        raise InputError(
            f"{key} is one torch module, a {type(value).__name__}, but every model of a run is "
            f"drawn anew; pass a function that builds it: def build(data): return ..., {key}=build"
        )
    if isinstance(value, Passed):
        return value.name
    if is_component(value):
        return name_of(value, key)
    if isinstance(value, Mapping):
        return {name: _plain(item, f"{key}.{name}") for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, key) for item in value]
    return value


def execute(
    request: Request, communicator: Communicator, stop_requested: Callable[[], bool]
) -> Result:
    """Carry out a request; collective.

    Parameters
    ----------
    request : Request
        What the user asked for, the same on every rank.
    communicator : Communicator
        All ranks.
    stop_requested : callable
        Returns whether this rank was asked to stop.

    Returns
    -------
    Result
        Its status is 'dry run' where the request asks for one.

    Raises
    ------
    InputError
        For a wrong configuration or input; nothing is written.
    RunError
        For a failure while running.
    StopRequested
        Where a rank was asked to stop before its first round; nothing is written.
    """
    clock = Clock()
    with clock.measure("startup"):
        first = communicator.rank == 0
        with heartbeat.stop_requests_from(stop_requested):  # clients=data reads a file
            task, configuration, horizon, ended = _settle(request, communicator)
        heartbeat.set_stall_limit(configuration.stall_limit)
        if ended is not None:
            if first and not request.quiet:
                say(_before(ended, task.output))
            return Result(task.output, ended["status"])
    with computing_threads(configuration.threads):
        settled = configuration, horizon, communicator
        try:
            return _carry_out(request, task, *settled, clock, stop_requested)
        except (InputError, RunError, PeerFailure, StopRequested, KeyboardInterrupt):
            raise
        except BaseException as error:  # a user's component may raise anything
            raise code_error(error, configuration, request.on_round) from error


def _carry_out(
    request: Request,
    task: Task,
    configuration: Configuration,
    horizon: int,
    communicator: Communicator,
    clock: Clock,
    stop_requested: Callable[[], bool],
) -> Result:
    """Carry out the task; collective."""
    first = communicator.rank == 0
    with clock.measure("startup"):
        stored = checkpoint.read_arrays(task.point.path) if task.point is not None else None
        echo = None if request.quiet or request.json else say
        listen: AbstractContextManager[list[str]] = listening(echo) if first else nullcontext([])
        with listen as warnings, heartbeat.stop_requests_from(stop_requested):
            setup = agree(communicator, lambda: make(configuration, communicator, horizon, stored))
        task.remarks.extend(f"warning: {line}" for line in dict.fromkeys(warnings))
        agree(communicator, lambda: check_columns(setup, columns_of(setup)))
        task.remarks.extend(agree(communicator, lambda: remarks(setup)))
    if request.dry_run:
        lines = plan_lines(setup)
        record = {"output": str(task.output), "configuration": to_mapping(configuration)}
        plan = {**plan_of(setup), "lines": lines, "remarks": task.remarks}
        text = "\n".join([to_yaml(configuration), *lines, *task.remarks])
        if first:
            say(json.dumps({**record, "plan": plan}, default=str) if request.json else text)
        return Result(task.output, "dry run")
    clock.seconds["startup"] += request.spent
    # What is recorded says how clients step, where digests depend on it.
    as_used = replace(configuration, local=setup.solver.options)
    recorder = Recorder(task.output, to_mapping(as_used), to_yaml(as_used)) if first else None
    status = train(
        setup,
        task,
        recorder,
        clock,
        stop_requested,
        quiet=request.quiet,
        one_line=request.progress,
        on_round=request.on_round,
        track=request.track,
    )
    return Result(task.output, status)


def _understood(request: Request) -> tuple[dict[str, Any], Task]:
    """Return what the words of a request mean: a configuration, and where it is run."""
    resume, overrides = request.resume, request.overrides or {}
    earlier = earlier_run(request.output, resume, request.restart)
    if request.experiment is None and earlier.stored is not None:
        base = base_configuration(earlier.stored, overrides.get("reschedule") is True)
    else:
        base = read_experiment(request.experiment, overrides)
    mapping = apply_overrides(base, overrides)
    experiment = str(mapping.get("experiment", "run"))
    return mapping, task_of(earlier, experiment, bool(resume), request.restart, request.quiet)


Settled = tuple[Task, Configuration, int, dict[str, Any] | None]


def _settle(request: Request, communicator: Communicator) -> Settled:
    """Return what a request means, the configuration to train under with R of its schedules, and
    the summary of a run of which nothing is left to do, as rank 0 reads them. Collective.
    """

    def read() -> Settled:
        with naming_line(request.experiment, request.overrides or {}):
            mapping, task = _understood(request)
            callback(request.on_round)
            if request.track is not None:
                check_tracker(request.track)
            configuration = resolve(mapping, communicator.size)
        task.remarks.extend(decided(mapping, configuration))
        horizon = configuration.rounds
        if task.stored is not None:
            check_resume(configuration, task)
            configuration, horizon = as_begun(configuration, task)
        resume = None if request.dry_run else request.resume
        ended = _ended(resume, task, configuration) if resume else None
        return task, configuration, horizon, ended

    is_first = communicator.rank == 0
    settled = agree(communicator, lambda: read() if is_first else None)
    return cast(Settled, communicator.broadcast_object(settled))


def _ended(resume: bool | Path, task: Task, configuration: Configuration) -> dict[str, Any] | None:
    """Return the summary of the run to resume where it is complete and does not go on from a
    checkpoint that is named.
    """
    summary = ended_before(task.output, configuration)
    if summary is not None and isinstance(resume, Path) and task.point:
        at_its_end = task.point.meta.round == summary["rounds"]
        named = summary["status"] == STOPPED_AT and resume.is_file()
        return summary if at_its_end and not named else None
    return summary


def _before(summary: Mapping[str, Any], output: Path) -> str:
    """Return how a run ended of which nothing is left to do."""
    if summary["status"] != STOPPED_AT:
        return f"{summary['status']} before: {output}"
    return (
        f"{STOPPED_AT} round {summary['rounds']} before, since {summary.get('stopped_by')}: "
        f"{output}; other rounds, another evaluation.stop_at or .patience, or --resume CHECKPOINT "
        "go on"
    )
