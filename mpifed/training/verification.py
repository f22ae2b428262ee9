"""Repeats rounds of a finished run and compares what it recorded with what comes out.

What a finished run has recorded, read in order to be compared with a repetition.

Tests whether this computer's kernels give equal digests on any number of ranks.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits
from torch import Tensor

from mpifed.algorithms.fedmm.fedmm import FAILURES, FedMM, inputs_of
from mpifed.algorithms.global_model.maml import Maml
from mpifed.checkpoint import files as checkpoint
from mpifed.config.configuration import Configuration, resolve
from mpifed.errors import InputError, one_line
from mpifed.federation.clients import Clients, Draws
from mpifed.local.invariance import addresses_agree, blocks_agree, products_agree
from mpifed.local.linear_objective import objective_of
from mpifed.local.objective import Objective, Regulariser
from mpifed.local.solver import LocalSGD
from mpifed.models.icnn import DenseICNN
from mpifed.mpi.agreement import agree
from mpifed.mpi.communicator import Communicator
from mpifed.results.configurations import read_stored
from mpifed.results.results import Metrics, read_clients, read_metrics, read_summary
from mpifed.results.run_directories import check_finished, chosen_rounds
from mpifed.training import request
from mpifed.training.build import Setup, make
from mpifed.training.engine import Clock, Engine, digest
from mpifed.training.evaluation import columns_of
from mpifed.training.request import only_as_last, resumed_after
from mpifed.training.run_directory import field_of, results_of
from mpifed.training.samples import Samples, samples_of
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


# Rows of the largest block tried: enough for kernels that process 16 at a time.
ROWS = 20

# Largest count of parameters, or of inputs, in that block, which has 3 rows in any case.
NUMBERS = 1 << 21

# Largest product of parameters and scored samples; 64 samples are scored in any case.
PRODUCTS = 1 << 28

# Samples that are tried at a time, at most.
CHUNK = 8192

# The value of MKL_CBWR that the promise needs; ``mpifed/__init__.py`` sets it.
CBWR = "AUTO,STRICT"

# What is tried, in the plural, and a function that says whether its results agree.
Trial = tuple[str, Callable[[], bool]]

# Returns so many models, each drawn anew: (count, P).
Models = Callable[[int], Tensor]


def smallest_and_largest(setup: Setup, samples: Samples) -> Clients:
    """Return the clients hosted here with whose samples kernels are tried."""
    counts = setup.dataset.description.n_train[setup.federation.hosted]
    order = np.argsort(counts, kind="stable")
    order = order[counts[order] > 0]
    return samples.clients(np.concatenate([order[:-1][:ROWS], order[-1:]]))


def warning_of_kernels(setup: Setup, clients: Clients, seed: int) -> str | None:
    """Return a warning if results of this run depend on which clients share a rank."""
    if setup.device.type != "cpu" or not len(clients):
        return None
    with torch.random.fork_rng(devices=[]):
        varying = [name for name, agrees in _trials(setup, clients, Draws(seed, 1)) if not agrees()]
    if not varying:
        return None
    return (
        f"on this computer {' and '.join(varying)} depend on which clients share a rank, so "
        f"digests may differ between numbers of ranks; {advice(products_agree(setup.dtype))}"
    )


def advice(
    products: bool,
    has_mkl: bool | None = None,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Return what to do where results depend on which clients share a rank."""
    if products:
        return (
            "layers of another kind or another dtype may be computed by kernels that do not; else "
            "compare digests of runs on the same number of ranks only"
        )
    if not (torch.backends.mkl.is_available() if has_mkl is None else has_mkl):
        return (
            "this torch was built without MKL, whose reproducible kernels are needed; install one "
            "with MKL, or compare digests of runs on the same number of ranks only"
        )
    value = environment.get("MKL_CBWR")
    if value != CBWR:
        return f"MKL_CBWR is '{value}': unset it, or set it to {CBWR}"
    return (
        "MKL had computed before mpifed was imported: import mpifed before torch computes anything,"
        f" or set MKL_CBWR={CBWR} before Python starts"
    )


def _trials(setup: Setup, clients: Clients, draws: Draws) -> Iterator[Trial]:
    """Yield the calls that results depend on; ``clients`` have samples, the smallest first."""
    algorithm, model = setup.algorithm, setup.model
    if isinstance(model, DenseICNN):
        yield "the potential's gradients", lambda: _potentials_agree(model, clients, draws)
    elif isinstance(algorithm, FedMM):
        yield "the surrogate's statistics", lambda: _statistics_agree(algorithm, clients, draws)
    elif not algorithm.uses_model:
        x = clients.shards.train.x.flatten(1).double()[:CHUNK]
        yield "matrix products", lambda: addresses_agree(lambda z: z.T @ z, x)
    else:
        models = _models(setup, draws)
        yield "the model's outputs", lambda: _outputs_agree(setup, clients, models)
        yield "the model's gradients", lambda: _gradients_agree(setup, clients, models, draws)


def _gradients_agree(setup: Setup, clients: Clients, models: Models, draws: Draws) -> bool:
    """Return whether local SGD, or the exact risks of methods without it, agree in any block."""
    model = setup.model
    inputs = int(clients.n_train[0]) * int(np.prod(clients.shards.train.x.shape[1:]))
    count = min(ROWS, max(3, NUMBERS // max(1, model.n_parameters, inputs)))
    # Clients of one size share a batch, so the smallest one goes in several times.
    rows = np.resize(clients.rows[: max(1, count // 4)], count)
    start = models(count)
    if setup.algorithm.local_options is None:
        # This share of a client's local steps rounds up to one step.
        some = Clients(clients.federation, clients.shards, rows, np.full(count, 1e-12))
        solver = _solver(setup)

        def step(part: slice) -> Tensor:
            own = _part(some, part)
            first = start[part, None]
            return solver(first, solver.init(len(own), 1, setup.dtype), own, draws)[0]

        return blocks_agree(step, count)
    some = Clients(clients.federation, clients.shards, rows)

    def risks(part: slice) -> tuple[Objective, Tensor]:
        return objective_of(model, _part(some, part), Regulariser()), start[part]

    def losses(part: slice) -> Tensor:
        objective, at = risks(part)
        return objective.losses(at)

    def gradients(part: slice) -> Tensor:
        objective, at = risks(part)
        return objective.gradients(at)

    def hessian_products(part: slice) -> Tensor:
        objective, at = risks(part)
        return objective.hessian_products(at, at)

    calls = [losses, gradients]
    if isinstance(setup.algorithm, Maml):
        calls.append(hessian_products)
    return all(blocks_agree(call, count) for call in calls)


def _outputs_agree(setup: Setup, clients: Clients, drawn: Models) -> bool:
    """Return whether a client's scores are the same at any address of its models and samples."""
    row, shards = clients.rows[-1], clients.shards
    split = shards.test if shards.test.counts[row] else shards.train
    models = drawn(setup.configuration.algorithm.options.get("n_components", 1))
    count = min(setup.model.scored_together, max(64, PRODUCTS // max(1, models.numel())))
    samples = split.rows_of(row)
    return addresses_agree(setup.model.shared_logits, models, split.x[samples][:count])


def _statistics_agree(algorithm: FedMM, clients: Clients, draws: Draws) -> bool:
    """Return whether a client's statistics are the same in a block with any other clients."""
    surrogate = algorithm.surrogate
    split = algorithm.samples(_part(clients, slice(0, 4)), draws)
    z, offsets = inputs_of(split, algorithm.with_target), split.offsets
    if len(offsets) == 2:
        # One client is divided into three, to be tried in a block with others.
        count = len(z)
        offsets = np.unique([0, count // 5, count // 2, count])
    theta = torch.from_numpy(surrogate.init(draws.stream("trial")))

    def statistics(part: slice) -> Tensor:
        cut = offsets[part.start : part.stop + 1]
        return surrogate.statistics(z[cut[0] : cut[-1]], theta, cut - cut[0])

    try:
        return blocks_agree(statistics, len(offsets) - 1)
    except FAILURES:
        # The run itself reports what cannot be computed at all.
        return True


def _potentials_agree(model: DenseICNN, clients: Clients, draws: Draws) -> bool:
    """Return whether gradients of a potential are the same at any address of its parameters."""
    x = clients.shards.train.x[slice(*clients.shards.train.offsets[clients.rows[0] :][:2])][:CHUNK]
    parameters = torch.from_numpy(model.init(draws.stream("trial"))).to(x)

    def gradients(parameters: Tensor, x: Tensor) -> Tensor:
        point = model.at(parameters, x)
        tangent = point.along(point.push())
        return torch.cat([point.value_gradient(1.0), tangent.gradient(1.0)])

    return addresses_agree(gradients, parameters, x)


def _models(setup: Setup, draws: Draws) -> Models:
    """Return a function that draws models, each of them once: large ones take a while."""
    rows: list[np.ndarray] = []

    def first(count: int) -> Tensor:
        while len(rows) < count:
            rows.append(setup.model.init(draws.stream(f"trial {len(rows)}")))
        return torch.from_numpy(np.stack(rows[:count])).to(setup.dtype)

    return first


def _solver(setup: Setup) -> LocalSGD:
    longest = int(setup.dataset.description.n_train.max())
    options = setup.configuration.local
    return LocalSGD(setup.model, options, setup.horizon, longest, setup.device)


def _part(clients: Clients, part: slice) -> Clients:
    effort = None if clients.effort is None else clients.effort[part]
    return Clients(clients.federation, clients.shards, clients.rows[part], effort)
