"""Repeats rounds of a finished run and compares what it recorded with what comes out."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from mpifed.checkpoint import files as checkpoint
from mpifed.config.configuration import ARITHMETIC, Configuration, resolve
from mpifed.errors import InputError, one_line
from mpifed.local.invariance import products_agree
from mpifed.mpi.agreement import agree
from mpifed.mpi.communicator import Communicator
from mpifed.results.configurations import read_stored
from mpifed.results.results import Metrics, read_clients, read_metrics, read_summary
from mpifed.results.run_directories import check_finished, chosen_rounds
from mpifed.training import request
from mpifed.training.build import make
from mpifed.training.engine import Clock, Engine, digest
from mpifed.training.evaluation import columns_of
from mpifed.training.request import only_as_last, resumed_after
from mpifed.training.run_directory import field_of, results_of
from mpifed.training.samples import samples_of
from mpifed.training.simulated_time import COLUMN, taking_part
from mpifed.training.train import MEASURED, describe_versions, summary_of

# The key of summary.json that a retimed run has and no other.
RETIMED = "retimed"


@dataclass(frozen=True)
class Recorded:
    """What a run directory holds, read by one rank."""

    directory: Path
    mapping: dict[str, Any]
    metrics: Metrics
    checkpoints: dict[int, tuple[Path, checkpoint.Meta]]
    damaged: dict[int, str]
    lacking: list[str]

    @property
    def rounds(self) -> int:
        """The last round."""
        return int(self.mapping["rounds"])

    @property
    def known(self) -> list[int]:
        """The rounds of which something is recorded, ascending; the last one is among them."""
        evaluated = map(int, self.metrics.texts("round"))
        return sorted({*evaluated, *self.checkpoints, self.rounds})

    def row(self, round: int) -> dict[str, str] | None:
        """Return the recorded row of a round by column; None where it was not evaluated."""
        for row in self.metrics.rows:
            named = dict(zip(self.metrics.columns, row, strict=True))
            if int(named["round"]) == round:
                return named
        return None


def read_run(directory: Path) -> Recorded:
    """Return what a finished run has recorded."""
    check_finished(directory)
    intact, damaged = {}, {}
    for path in checkpoint.listed(directory / "checkpoints"):
        try:
            intact[checkpoint.round_of(path)] = path, checkpoint.read_meta(path)
        except checkpoint.Damaged as error:
            damaged[checkpoint.round_of(path)] = str(error)
    mapping = read_stored(directory / "config.yaml")
    metrics = read_metrics(directory / "metrics.csv")
    lacking = [
        *_rows_lacking(directory, mapping, metrics, intact),
        *_checkpoint_lacking(directory, mapping, {*intact, *damaged}),
    ]
    return Recorded(directory, mapping, metrics, intact, damaged, lacking)


def _rows_lacking(
    directory: Path,
    mapping: Mapping[str, Any],
    metrics: Metrics,
    checkpoints: Mapping[int, tuple[Path, checkpoint.Meta]],
) -> list[str]:
    """Return a line for each row that metrics.csv lacks, or has of a later round than the last."""
    last, there = int(mapping["rounds"]), {int(text) for text in metrics.texts("round")}
    metas = [meta for number, (_, meta) in checkpoints.items() if number <= last]
    due = rounds_due(mapping, metas, resumed_after(directory / "log.txt"))
    return [
        *(f"round {number}: metrics.csv has no row of it" for number in sorted(due - there)),
        *(
            f"round {number}: metrics.csv has a row of it, but rounds is {last}"
            for number in sorted(there)
            if number > last
        ),
    ]


def rounds_due(
    mapping: Mapping[str, Any], metas: Iterable[checkpoint.Meta], resumed: int
) -> set[int]:
    """Return the rounds of which metrics.csv must have a row."""
    last, every = int(mapping["rounds"]), int(mapping["evaluation"]["every"])
    due = {0, last, *range((resumed // every + 1) * every, last, every)}
    for meta in metas:
        # The last checkpoint holds all rows, unless an earlier part of the run wrote it.
        whole = meta.round == last > resumed
        place = meta.columns.index("round") if meta.rows else 0
        recorded = {int(row[place]) for row in meta.rows}
        due |= {
            number
            for number in recorded
            if (whole or number <= min(resumed, last)) and not only_as_last(meta, number)
        }
    return due


def _checkpoint_lacking(
    directory: Path, mapping: Mapping[str, Any], checkpoints: set[int]
) -> list[str]:
    """Return a line if there is no checkpoint of the last round, in a list."""
    last = int(mapping["rounds"])
    # A run that is resumed at its end from a checkpoint elsewhere writes none.
    if last in checkpoints or resumed_after(directory / "log.txt") >= last or _retimed(directory):
        return []
    return [f"round {last}: checkpoints/{checkpoint.path_of(Path(), last)} is missing"]


def _retimed(directory: Path) -> bool:
    try:
        return RETIMED in read_summary(directory / "summary.json")
    except InputError:  # which is reported where the last round is repeated
        return False


def differing_clients(path: Path, made: Mapping[str, np.ndarray]) -> list[str]:
    """Return how a clients.h5 differs from the last evaluation."""
    try:
        stored = read_clients(path)
    except InputError as error:
        return [str(error)]
    there = {**stored.results, **{f"learnt/{k}": part for k, part in stored.learnt.items()}}
    found = [f"clients.h5 has no {name}" for name in made if name not in there]
    found += [f"clients.h5 has {name}, which the run does not make" for name in there.keys() - made]
    for name in made.keys() & there.keys():
        one, other = np.asarray(made[name]), there[name]
        if one.shape != other.shape or one.tobytes() != other.tobytes():
            found.append(f"clients.h5 has another {name}")
    return found


def differing_summary(path: Path, made: Mapping[str, Any], passed_over: Set[str]) -> list[str]:
    """Return how a summary.json differs from that of the repeated run."""
    try:
        summary = read_summary(path)
    except InputError as error:
        return [str(error)]
    found = []
    for name in [*made, *sorted(summary.keys() - made)]:
        # As in the file: 1, 1.0 and true differ, and NaN equals itself.
        there, here = (
            json.dumps(values[name], sort_keys=True) if name in values else None
            for values in (summary, made)
        )
        if name in passed_over or there == here:
            continue
        if there is None:
            found.append(f"summary.json has no {name}")
        elif here is None:
            found.append(f"summary.json has {one_line(name, 60)}, which the run does not make")
        else:
            found.append(f"summary.json has {name} {one_line(there, 80)}, not {here}")
    return found


def other_versions(directory: Path) -> list[str]:
    """Return which packages have other versions here than where the run was made."""
    try:
        then = read_summary(directory / "summary.json").get("versions")
    except InputError:  # which is a difference in itself, and was reported
        return []
    now, known = describe_versions(), then if isinstance(then, dict) else {}
    return [
        f"{name} {known[name]} there, {now[name]} here"
        for name in now
        if name in known and known[name] != now[name]
    ]


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
    agree(communicator, lambda: _check_arithmetic(recorded))
    configuration = agree(communicator, lambda: resolve(recorded.mapping, communicator.size))
    configuration = communicator.broadcast_object(configuration)
    torch.set_num_threads(configuration.threads)
    with threadpool_limits(configuration.threads), torch.no_grad():
        return _verify(recorded, configuration, (begin, end), communicator, say)


def _check_arithmetic(recorded: Recorded) -> None:
    """Refuse a run whose digests cannot be repeated."""
    version = recorded.mapping.get("arithmetic", 1)
    if version != ARITHMETIC:
        raise InputError(
            f"{recorded.directory} was made by an mpifed of arithmetic {version}, and this one has "
            f"{ARITHMETIC}: sums are rounded otherwise, so that no digest can be the same"
        )


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
    horizon = meta.horizon if meta else request.stored_horizon(recorded.mapping)
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


def advice_on_kernels() -> str | None:
    """Return what to do where products depend on where operands begin, hence on which clients
    share a rank; None where they do not.
    """
    if products_agree(torch.float32) and products_agree(torch.float64):
        return None
    if not torch.backends.mkl.is_available():
        return "this torch was built without MKL, whose reproducible kernels are needed"
    return (
        f"MKL_CBWR is {os.environ.get('MKL_CBWR')!r}; it must be AUTO,STRICT before Python starts"
    )
