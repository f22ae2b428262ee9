"""Repeats rounds of a finished run and compares what it recorded with what comes out."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed.checkpoint import files as checkpoint
from mpifed.config.configuration import Configuration, resolve
from mpifed.config.stored import ARITHMETIC, arithmetic_of
from mpifed.errors import InputError, one_line
from mpifed.mpi.agreement import agree
from mpifed.mpi.communicator import Communicator
from mpifed.results.configurations import read_stored
from mpifed.results.results import (
    FINISHED,
    STOPPED_AT,
    Metrics,
    metrics_in,
    read_clients,
    read_metrics,
    read_summary,
)
from mpifed.results.run_directories import check_finished, chosen_rounds
from mpifed.training import request
from mpifed.training.build import make
from mpifed.training.engine import Clock, Engine, Rows, computing_threads, digest
from mpifed.training.evaluation import columns_of
from mpifed.training.run_directory import field_of, results_of
from mpifed.training.simulated_time import COLUMN, taking_part
from mpifed.training.train import MEASURED, describe_versions, summary_of

# Bytes of the widest vector; torch's allocations begin at multiples of this.
ALIGNMENT = 64


@dataclass(frozen=True)
class RecordedRun:
    """What a run directory holds, read by one rank."""

    directory: Path
    mapping: dict[str, Any]
    metrics: Metrics
    checkpoints: dict[int, tuple[Path, checkpoint.Meta]]
    lacking: list[str]
    rounds: int
    """The last round."""
    status: str = FINISHED

    @property
    def recorded_rounds(self) -> list[int]:
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


def read_run(directory: Path) -> RecordedRun:
    """Return what a finished run has recorded."""
    check_finished(directory)
    intact, lacking = {}, []
    for path in checkpoint.checkpoints_in(directory / "checkpoints"):
        try:
            intact[checkpoint.round_of(path)] = path, checkpoint.read_meta(path)
        except checkpoint.Damaged as error:
            lacking.append(f"round {checkpoint.round_of(path)}: {error}")
    mapping = read_stored(directory / "config.yaml")
    metrics = read_metrics(directory / "metrics.csv")
    rounds, status = int(mapping["rounds"]), FINISHED
    with contextlib.suppress(InputError):  # which is a difference that is reported
        summary = read_summary(directory / "summary.json")
        if summary["status"] == STOPPED_AT and summary["rounds"] <= rounds:
            rounds, status = summary["rounds"], STOPPED_AT
    due = {0, rounds}
    if rounds in intact:  # a checkpoint holds all rows up to its round
        _, meta = intact[rounds]
        due |= set(map(int, metrics_in(meta.metrics).texts("round")))
    missing = due - set(map(int, metrics.texts("round")))
    lacking += [f"round {number}: metrics.csv has no row of it" for number in sorted(missing)]
    return RecordedRun(directory, mapping, metrics, intact, lacking, rounds, status)


def differing_clients(path: Path, repeated: Mapping[str, np.ndarray]) -> list[str]:
    """Return how a clients.h5 differs from the last evaluation."""
    try:
        stored = read_clients(path)
    except InputError as error:
        return [str(error)]
    recorded = {**stored.results, **{f"learnt/{k}": part for k, part in stored.learnt.items()}}
    differing = []
    for name in sorted({*recorded, *repeated}):
        one, other = repeated.get(name), recorded.get(name)
        if one is None or other is None or not _same(np.asarray(one), other):
            differing.append(f"clients.h5 has another {name}")
    return differing


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one.shape == other.shape and one.tobytes() == other.tobytes()


def differing_summary(path: Path, repeated: Mapping[str, Any], measured: set[str]) -> list[str]:
    """Return how a summary.json differs from that of the repeated run."""
    try:
        summary = read_summary(path)
    except InputError as error:
        return [str(error)]
    differing = []
    for name in sorted({*repeated, *summary} - measured):
        # As in the file: 1, 1.0 and true differ, and NaN equals itself.
        then, now = (json.dumps(values.get(name), sort_keys=True) for values in (summary, repeated))
        if then != now:
            differing.append(f"summary.json has {name} {one_line(then, 80)}, not {now}")
    return differing


def other_versions(directory: Path) -> list[str]:
    """Return which packages have other versions here than where the run was made."""
    try:
        recorded = read_summary(directory / "summary.json").get("versions")
    except InputError:  # which is a difference in itself, and was reported
        recorded = None
    if not isinstance(recorded, dict):
        return []
    return [
        f"{name} {recorded[name]} there, {version} here"
        for name, version in describe_versions().items()
        if recorded.get(name, version) != version
    ]


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
    recorded: RecordedRun = communicator.broadcast_object(read)
    begin, end = agree(communicator, lambda: chosen_rounds(rounds, recorded.rounds))
    origins = agree(communicator, lambda: _origins(recorded, end))
    start = max((number for number in origins if number < begin), default=origins[0])
    if (begin, end) == (1, recorded.rounds):
        start = origins[0]
    if start >= begin:
        say(
            f"rounds {begin} to {start} cannot be repeated: the run began with an arithmetic whose "
            f"numbers are rounded otherwise, and round {start} is the first state stored since"
        )
    # The state of a round of which nothing is recorded shows in the next one.
    last = min(number for number in recorded.recorded_rounds if number >= end)
    verdict = Verdict(start + 1, last, differences=list(recorded.lacking))
    configuration = agree(communicator, lambda: resolve(recorded.mapping, communicator.size))
    configuration = communicator.broadcast_object(configuration)
    with computing_threads(configuration.threads), torch.no_grad():
        engine = _engine(recorded, configuration, start, communicator)
        origin = recorded.checkpoints[start][0].name if start else "the first state"
        say(f"repeating rounds {verdict.first} to {last} from {origin}")
        # An earlier mpifed had fewer columns.
        columns = [c for c in columns_of(engine.setup) if c in recorded.metrics.columns]
        if columns != recorded.metrics.columns:
            verdict.differences.append("metrics.csv has other columns than such a run")
            return verdict
        same = _compare(engine, recorded, verdict, say)
        while same and engine.round < last:
            engine.advance()
            engine.agree(False)
            same = _compare(engine, recorded, verdict, say)
    return verdict


def _origins(recorded: RecordedRun, end: int) -> list[int]:
    """Return the rounds before ``end``, ascending, from whose state all can be repeated."""
    since, version = arithmetic_of(recorded.mapping)[-1]
    origins = [number for number in (0, *recorded.checkpoints) if since - 1 <= number < end]
    if version == ARITHMETIC and origins:
        return sorted(origins)
    other = version if version != ARITHMETIC else arithmetic_of(recorded.mapping)[-2][1]
    raise InputError(
        f"{recorded.directory} was made by an mpifed of arithmetic {other}, and this one has "
        f"{ARITHMETIC}: numbers are rounded otherwise, so that digests differ. It stores no state "
        f"before round {end} that this mpifed continued; use one of arithmetic {other}"
    )


def _engine(
    recorded: RecordedRun, configuration: Configuration, start: int, communicator: Communicator
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
    setup = dataclasses.replace(setup, rounds=recorded.rounds)
    shards = agree(communicator, setup.hosted_shards)
    engine = Engine(setup, shards, Clock(), recorded.directory)
    if path is None or meta is None:
        engine.prepare()
        return engine
    engine.restore(path, meta)
    engine.active = int(taking_part(setup, engine.round).sum())
    return engine


def _compare(
    engine: Engine, recorded: RecordedRun, verdict: Verdict, say: Callable[[str], None]
) -> bool:
    """Compare the state after ``engine.round`` with what is recorded of it; collective."""
    number, differences, same, setup = engine.round, list[str](), True, engine.setup
    row, recorded_state = recorded.row(number), recorded.checkpoints.get(number)
    at_the_end = number == recorded.rounds
    if row is None and recorded_state is None and not at_the_end:
        return True
    state_digest = engine.digest()
    if recorded_state is not None:
        path, meta = recorded_state
        is_rows, hosted = setup.exchange.shared_is_rows, setup.federation.hosted
        stored_rows = Rows(setup)
        stored_rows.take(checkpoint.read_state(path, engine.state, is_rows, hosted))
        stored = digest(setup, stored_rows)
        if stored != state_digest:
            same = False
            differences.append(f"{path.name} holds the state {stored}, not {state_digest}")
        if dict(meta.ledger) != dict(vars(setup.exchange.ledger)):
            differences.append(f"{path.name} counts other bits that were sent")
    if row is not None or at_the_end:
        evaluated = engine.evaluated()
        # summary_of asks all ranks, and reads the scores on the first.
        engine.scores = evaluated[0] if evaluated is not None else {}
        summary = summary_of(setup, engine, recorded.status) if at_the_end else None
        is_measured = setup.compute.name == "measured"
        measured = {"seconds", COLUMN} if is_measured else {"seconds"}
        if evaluated is not None and row is not None:
            same = same and row["state_digest"] == state_digest
            texts = {name: field_of(evaluated[0].get(name)) for name in row}
            differences += [
                f"metrics.csv has {name} {row[name] or 'empty'}, not {text or 'empty'}"
                for name, text in texts.items()
                if name not in measured and row[name] != text
            ]
        if evaluated is not None and summary is not None:
            path = recorded.directory
            content = results_of(*evaluated[1:], setup.dataset.description.client_names)
            differences += differing_clients(path / "clients.h5", content)
            differences += differing_summary(path / "summary.json", summary, MEASURED | measured)
    differences, same = setup.federation.communicator.broadcast_object((differences, same))
    verdict.compared += row is not None or recorded_state is not None
    verdict.differences += [f"round {number}: {line}" for line in differences]
    say(f"round {number}: {'differs' if differences else 'the same'}")
    return same


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


def addresses_agree(function: Callable[..., Tensor], *operands: Tensor) -> bool:
    """Return whether ``function(*operands)`` is the same wherever in memory ``operands`` begin."""
    aligned = function(*(_shifted(operand, 0) for operand in operands))
    shifts = ((1, 0), (0, 1), (3, 5), (5, 2))
    return all(
        torch.allclose(
            function(*(_shifted(t, shift[k % 2]) for k, t in enumerate(operands))),
            aligned,
            rtol=0,
            atol=0,
            equal_nan=True,
        )
        for shift in shifts
    )


def products_agree(dtype: torch.dtype) -> bool:
    """Return whether products of ``dtype`` are the same wherever in memory their operands
    begin.
    """
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(*shape, generator=generator, dtype=dtype) for shape in ((37, 33), (33, 29)))
    column = b[:, :1].contiguous()
    return addresses_agree(torch.mm, a, b) and addresses_agree(torch.mm, a, column)


def _shifted(operand: Tensor, by: int) -> Tensor:
    """A copy that begins ``by`` numbers behind a multiple of ``ALIGNMENT`` bytes."""
    memory = operand.new_empty(operand.numel() + ALIGNMENT + by)
    first = -(memory.data_ptr() // operand.itemsize) % (ALIGNMENT // operand.itemsize) + by
    return memory[first : first + operand.numel()].view(operand.shape).copy_(operand)
