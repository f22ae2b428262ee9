"""Repeats rounds of a finished run and compares what it recorded with what comes out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from mpifed.checkpoint import files as checkpoint
from mpifed.config.configuration import Configuration, resolve
from mpifed.mpi.agreement import agree
from mpifed.mpi.communicator import Communicator
from mpifed.results.run_directories import chosen_rounds
from mpifed.training import resume
from mpifed.training.asynchronous import taking_part
from mpifed.training.build import make
from mpifed.training.clock import Clock
from mpifed.training.digest import digest
from mpifed.training.engine import Engine
from mpifed.training.evaluation import columns_of
from mpifed.training.recorded_run import (
    RETIMED,
    Recorded,
    differing_clients,
    differing_summary,
    read_run,
)
from mpifed.training.run_directory import field_of, results_of
from mpifed.training.samples import samples_of
from mpifed.training.simulated import COLUMN
from mpifed.training.summary import MEASURED, summary_of

# The column that differs from run to run.
NOT_COMPARED = "seconds"


@dataclass
class Verdict:
    """What was repeated and what differs, the same on every rank."""

    first: int
    last: int
    compared: int = 0
    differences: list[str] = field(default_factory=list)


def verify(
    directory: Path,
    rounds: tuple[int, int] | int | None,
    communicator: Communicator,
    say: Callable[[str], None],
) -> Verdict:
    """Repeat rounds of a finished run on these ranks; collective."""
    first = communicator.rank == 0
    read = agree(communicator, lambda: read_run(directory) if first else None)
    recorded: Recorded = communicator.broadcast_object(read)
    begin, end = agree(communicator, lambda: chosen_rounds(rounds, recorded.rounds))
    configuration = agree(communicator, lambda: resolve(recorded.mapping, communicator.size))
    configuration = communicator.broadcast_object(configuration)
    torch.set_num_threads(configuration.threads)
    with threadpool_limits(configuration.threads), torch.no_grad():
        return _verify(recorded, configuration, (begin, end), communicator, say)


def _verify(
    recorded: Recorded,
    configuration: Configuration,
    rounds: tuple[int, int],
    communicator: Communicator,
    say: Callable[[str], None],
) -> Verdict:
    before = [number for number in recorded.checkpoints if number < rounds[0]]
    start = max(before, default=0)
    if rounds == (1, recorded.rounds):
        start = 0
    engine = _engine(recorded, configuration, start, communicator)
    # The state of a round of which nothing is recorded shows in the next one.
    verdict = Verdict(start + 1, min(number for number in recorded.known if number >= rounds[1]))
    say(
        f"repeating rounds {start + 1} to {verdict.last} from "
        + (recorded.checkpoints[start][0].name if start else "the first state")
    )
    for number, reason in sorted(recorded.damaged.items()):
        verdict.differences.append(f"round {number}: {reason}")
    verdict.differences += recorded.lacking
    columns = columns_of(engine.setup)
    if columns != recorded.metrics.columns:
        verdict.differences.append("metrics.csv has other columns than such a run")
        return verdict
    same = _compare(engine, recorded, verdict, say)
    while same and engine.round < verdict.last:
        engine.advance()
        engine.agree(False)
        same = _compare(engine, recorded, verdict, say)
    return verdict


def _engine(
    recorded: Recorded, configuration: Configuration, start: int, communicator: Communicator
) -> Engine:
    """Return the run at the end of round ``start``; collective."""
    newest = max(recorded.checkpoints, default=None)
    # What mixing matrices are made from is reloaded, as on a resume.
    stored = None if newest is None else checkpoint.read_arrays(recorded.checkpoints[newest][0])
    path, meta = recorded.checkpoints.get(start, (None, None))
    horizon = meta.horizon if meta else resume.stored_horizon(recorded.mapping)
    setup = agree(
        communicator,
        lambda: make(configuration, communicator, horizon or configuration.rounds, stored),
    )
    samples = agree(communicator, partial(samples_of, setup))
    engine = Engine(setup, samples, Clock(), recorded.directory)
    if path is None or meta is None:
        engine.prepare()
        return engine
    engine.restore(path, meta)
    engine.active = int(taking_part(setup, engine.round).sum())
    return engine


def _compare(
    engine: Engine, recorded: Recorded, verdict: Verdict, say: Callable[[str], None]
) -> bool:
    """Compare the state after ``engine.round`` with what is recorded of it; collective."""
    number, found, same = engine.round, list[str](), True
    row, kept = recorded.row(number), recorded.checkpoints.get(number)
    at_the_end = number == recorded.rounds
    if row is None and kept is None and not at_the_end:
        return True
    first = engine.setup.federation.communicator.rank == 0
    own = engine.digest()
    if kept is not None:
        stored = _digest_of(engine, kept[0])
        if stored != own:
            same = False
            found.append(f"{kept[0].name} holds the state {stored}, not {own}")
    if row is not None or at_the_end:
        made = engine.evaluated()
        # summary_of asks all ranks, and reads the scores on the first.
        engine.scores = made[0] if made is not None else {}
        summary = summary_of(engine.setup, engine, "finished") if at_the_end else None
        if made is not None and row is not None:
            same = same and row["state_digest"] == own
            found += _of_row(engine, recorded, row)
        if made is not None and summary is not None:
            found += _of_results(engine, recorded, results_of(*made[1:]), summary)
    if first and kept is not None:
        found += _of_meta(engine, recorded, kept[1], kept[0].name)
    found, same = engine.setup.federation.communicator.broadcast_object((found, same))
    verdict.compared += row is not None or kept is not None
    verdict.differences += [f"round {number}: {line}" for line in found]
    say(f"round {number}: {'differs' if found else 'the same'}")
    return same


def _of_row(engine: Engine, recorded: Recorded, row: Mapping[str, str]) -> list[str]:
    """Return how a row of metrics.csv differs from the evaluation of this round."""
    skipped = _measured_columns(engine)
    texts = {name: field_of(engine.scores.get(name)) for name in recorded.metrics.columns}
    return [
        f"metrics.csv has {name} {row[name] or 'empty'}, not {texts[name] or 'empty'}"
        for name in recorded.metrics.columns
        if name not in skipped and row[name] != texts[name]
    ]


def _of_results(
    engine: Engine,
    recorded: Recorded,
    made: Mapping[str, np.ndarray],
    summary: Mapping[str, Any],
) -> list[str]:
    """Return how clients.h5 and summary.json differ from the evaluation of the last round."""
    passed_over = MEASURED | {RETIMED} | _measured_columns(engine)
    return [
        *differing_clients(recorded.directory / "clients.h5", made),
        *differing_summary(recorded.directory / "summary.json", summary, passed_over),
    ]


def _measured_columns(engine: Engine) -> set[str]:
    """Return the columns that a repetition measures anew."""
    measured = engine.setup.configuration.compute.name == "measured"
    return {NOT_COMPARED, COLUMN} if measured else {NOT_COMPARED}


def _digest_of(engine: Engine, path: Path) -> str | None:
    """Return the digest of the state in a checkpoint, on rank 0; collective."""
    setup = engine.setup
    is_rows, hosted = setup.exchange.shared_is_rows, setup.federation.hosted
    return digest(setup, checkpoint.read_state(path, engine.state, is_rows, hosted))


def _of_meta(engine: Engine, recorded: Recorded, meta: checkpoint.Meta, name: str) -> list[str]:
    """Return what a checkpoint records otherwise than metrics.csv and the ledger say."""
    found = []
    known = {row[0]: row for row in recorded.metrics.rows}
    place = recorded.metrics.columns.index(NOT_COMPARED)
    for row in meta.rows:
        other = known.get(row[0])
        if other is not None and _without(row, place) != _without(other, place):
            found.append(f"{name} has another row of round {row[0]} than metrics.csv")
    if dict(meta.ledger) != dict(vars(engine.setup.exchange.ledger)):
        found.append(f"{name} counts other bits that were sent")
    return found


def _without(row: list[str], place: int) -> list[str]:
    return [*row[:place], *row[place + 1 :]]
