"""The loop over rounds: sample, train, agree, evaluate, record, checkpoint, stop on request."""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from mpifed import state as states
from mpifed.checkpoint import files as checkpoint
from mpifed.checkpoint.background import Writer
from mpifed.data.base import ProblemDescription
from mpifed.errors import Diverged, PeerDiverged, PeerFailure, raise_first_diverged
from mpifed.exchange.accounting import EPSILON, accountant_of
from mpifed.exchange.base import LastingMemory, Ledger
from mpifed.exchange.gossip_channel import GossipChannel
from mpifed.federation.clients import Clients, Draws
from mpifed.federation.hosted import HostedShards
from mpifed.federation.participation import efforts
from mpifed.method.algorithm import Algorithm
from mpifed.method.checks import check_state, checked_server_digest
from mpifed.mpi.communicator import Communicator
from mpifed.results.results import FINISHED, STOPPED_AT
from mpifed.state import RunState
from mpifed.training import evaluation as evaluations
from mpifed.training.callbacks import Progress
from mpifed.training.evaluation import ClientResults, warn_of_leap, warn_of_losses
from mpifed.training.run_directory import Recorder
from mpifed.training.setup import Setup
from mpifed.training.simulated_time import clock_of, taking_part
from mpifed.training.stopping import Decision, Stopping
from mpifed.watchdog.heartbeat import at_round, set_hosted_clients

# Clients whose digests are gathered at once.
BLOCK = 1 << 14

# Of a SHA-256.
DIGEST_BYTES = 32

PHASES = ("startup", "data", "local", "exchange", "evaluation", "checkpoint", "total")


class Rows:
    """The state between rounds."""

    state: RunState

    def __init__(self, setup: Setup) -> None:
        self._is_rows, self._hosted = setup.exchange.shared_is_rows, setup.federation.hosted
        self._unshared: list[torch.Tensor] = []
        """Tensors of the state that have no other owner."""
        self._changed: tuple[RunState, np.ndarray] | None = None
        """The rows that the last round changed, and their clients; None for all."""
        self._digests = np.empty((len(self._hosted), DIGEST_BYTES), np.uint8)
        self._has_digest = np.zeros(len(self._hosted), bool)

    def take(self, state: RunState) -> None:
        """Replace the whole state."""
        self._changed, self._unshared = None, []
        self._has_digest[:] = False
        self.state = state

    def read(self, path: Path) -> None:
        """Replace the whole state by that of a checkpoint."""
        self.state = checkpoint.read_state(path, self.state, self._is_rows, self._hosted)
        self._changed = None
        self._has_digest[:] = False
        self._claim(self.state)

    def of(self, positions: np.ndarray) -> RunState:
        """Return the state of some hosted clients, or the state itself where these are all."""
        if len(positions) == len(self._hosted):
            return self.state
        rows, memory = torch.from_numpy(positions), self.state.memory
        lasts = isinstance(memory, LastingMemory)
        state = RunState(self.state.algorithm) if lasts else self.state
        part = states.select(state, rows, self._is_rows)
        return RunState(part.algorithm, memory) if lasts else part

    def merge(self, moved: RunState, positions: np.ndarray) -> None:
        """Replace the rows of some hosted clients, and all that has no client axis."""
        # What is kept of rows has been checked before it was.
        lasts = isinstance(self.state.memory, LastingMemory)
        checked = RunState(moved.algorithm) if lasts else moved
        if len(positions) == len(self._hosted):
            self.take(moved)
        else:
            rows, memory = torch.from_numpy(positions), self.state.memory
            before = RunState(self.state.algorithm) if lasts else self.state
            after = states.merge(before, checked, rows, self._is_rows, self._unshared)
            self.state = RunState(after.algorithm, memory) if lasts else after
            self._has_digest[slice(None) if lasts else positions] = False
            self._claim(self.state)
        self._changed = checked, self._hosted[positions]

    def unchecked(self) -> tuple[RunState, np.ndarray]:
        """Return what may hold numbers that are not finite since the last call, and its clients."""
        changed, self._changed = self._changed, (self.state, self._hosted[:0])
        if changed is None:
            return self.state, self._hosted
        return changed

    def digests(self) -> np.ndarray:
        """Return the digest of each hosted client; those of rows that have changed are computed."""
        for first in range(0, len(self._hosted), BLOCK):
            part = slice(first, min(first + BLOCK, len(self._hosted)))
            rows = np.flatnonzero(~self._has_digest[part])
            if len(rows):
                digests = states.client_digests(self.state, self._is_rows, part, rows)
                self._digests[first + rows] = _by_client(digests)
        self._has_digest[:] = True
        return self._digests

    def _claim(self, state: RunState) -> None:
        tensors = states.tensors(state, self._is_rows)
        self._unshared = [tensor for _, tensor, is_rows in tensors if is_rows]


def digest(setup: Setup, rows: Rows) -> str | None:
    """Return the SHA-256 over the digests of the server's and each client's state, in order."""
    federation, of_clients = setup.federation, rows.digests()
    total = hashlib.sha256(server_digest(setup, rows.state))
    for first in range(0, federation.n_clients, BLOCK):
        last = min(first + BLOCK, federation.n_clients)
        start, stop = np.searchsorted(federation.hosted, (first, last))
        gathered = federation.communicator.gather_object(of_clients[start:stop].tobytes())
        if gathered is None:
            continue
        owners = federation.owner[first:last]
        of_all = np.empty((last - first, DIGEST_BYTES), np.uint8)
        for rank, of_rank in enumerate(gathered):
            of_all[owners == rank] = _by_client(of_rank)
        total.update(of_all.data)
    return total.hexdigest() if federation.communicator.rank == 0 else None


def _by_client(digests: bytes) -> np.ndarray:
    return np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES)


def server_digest(setup: Setup, state: states.RunState) -> bytes:
    """Return the digest of what the server owns, which all ranks must share; collective."""
    is_rows, communicator = setup.exchange.shared_is_rows, setup.federation.communicator
    return checked_server_digest(setup.algorithm, state, is_rows, communicator)


def bad_clients(state: Any, shared_is_rows: bool, ids: np.ndarray) -> list[int]:
    """Return the ids of hosted clients whose state has a value that is not finite, ascending."""
    bad = np.zeros(len(ids), bool)
    for _, tensor, is_rows in states.tensors(state, shared_is_rows):
        if is_rows and not states.is_finite(tensor):
            bad |= ~torch.isfinite(tensor.flatten(1)).all(1).cpu().numpy()
    return [int(client) for client in ids[bad]]


def server_diverged(state: Any, shared_is_rows: bool) -> bool:
    """Return whether a tensor of the server has a value that is not finite."""
    tensors = states.tensors(state, shared_is_rows)
    return not all(states.is_finite(tensor) for _, tensor, is_rows in tensors if not is_rows)


def check_finite(
    communicator: Communicator, state: Any, shared_is_rows: bool, ids: np.ndarray, where: str
) -> None:
    """Raise if the state of any client is not finite; collective."""
    bad = bad_clients(state, shared_is_rows, ids)
    answer = communicator.max(np.array([-float(bad[0]) if bad else -np.inf]))
    raise_first_diverged(-answer[0], bad, where)


def all_diverged(communicator: Communicator, error: Diverged | PeerDiverged) -> list[int]:
    """Return the clients of all ranks that diverged, ascending, on every rank; collective."""
    gathered = communicator.gather_object(error.clients)
    union = sorted({client for of_rank in gathered for client in of_rank}) if gathered else None
    return list(communicator.broadcast_object(union))


def advice(algorithm: Algorithm) -> str:
    """Return what may help against divergence, for a message."""
    return f"a smaller {algorithm.step_option} may help"


@dataclass
class Clock:
    """Wall seconds by phase on this rank, over all parts of a run that was resumed."""

    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(PHASES, 0.0))

    @contextmanager
    def measure(self, phase: str) -> Iterator[None]:
        """Add the seconds of the block to a phase."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - began


@contextmanager
def computing_threads(number: int) -> Iterator[None]:
    """Compute with ``number`` threads within the block, and after it with as many as before."""
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        with threadpool_limits(number):
            yield
    finally:
        torch.set_num_threads(before)


class Engine:
    """The state of a run and the loop that advances it; all methods are collective."""

    def __init__(
        self, setup: Setup, shards: HostedShards, clock: Clock, directory: Path | None = None
    ) -> None:
        self.setup, self.shards, self.clock = setup, shards, clock
        self.seed = setup.seed
        self.simulated = clock_of(setup)
        self.rows = Rows(setup)
        self.rows.take(setup.first_state(shards))
        self.round = 0
        self.active: int | None = None
        self.scores: dict[str, Any] = {}
        self.report: Callable[[Mapping[str, Any]], bool] = lambda scores: False
        self.stopping: Stopping | None = None
        """What stops the run before its last round; on rank 0."""
        self.reason: str | None = None
        """Why it did."""
        self.first_scores: dict[str, Any] = {}
        self.has_infinite_losses = self.has_leapt = False
        self._compared = setup.federation.communicator.size == 1
        """Whether ranks have compared what the server owns after a round of this process."""
        self.writer = Writer(setup.federation)
        options, self.accountant = setup.exchange.privacy, None
        if options is not None and setup.federation.communicator.rank == 0:
            self.accountant = accountant_of(options, setup.federation, self.seed)
        self._began = self._saved = time.perf_counter()

    @property
    def everyone(self) -> Clients:
        """All clients hosted here."""
        return self.shards.among_hosted(np.arange(len(self.setup.federation.hosted)))

    @property
    def elapsed(self) -> float:
        """Wall seconds of training, over all parts of the run."""
        return self.clock.seconds["total"] + time.perf_counter() - self._began

    @property
    def state(self) -> states.RunState:
        """The state after round ``round``."""
        return self.rows.state

    def prepare(self) -> None:
        """Run the computations of clients before round 1; a resumed run does not repeat them."""
        with self.clock.measure("local"):
            algorithm, before, draws = self.setup.algorithm, self.state, Draws(self.seed, 0)
            prepared = algorithm.prepare(
                before.algorithm, self.everyone, self.setup.exchange, draws
            )
            check_state(algorithm, "prepare", prepared, before.algorithm)
            memory = before.memory
            if isinstance(memory, LastingMemory):
                memory = self.setup.first_memory(prepared, len(self.everyone))
            self.rows.take(states.RunState(prepared, memory))

    def restore(self, path: Path, meta: checkpoint.Meta) -> None:
        """Continue from a checkpoint; ``meta`` is what the file records besides the state."""
        self.rows.read(path)
        self.round = meta.round
        self.setup.exchange.ledger = Ledger(**meta.ledger)
        if self.simulated is not None and meta.simulated is not None:
            self.simulated.restore(meta.simulated)
        for phase, seconds in meta.seconds.items():
            self.clock.seconds[phase] += seconds

    def run(
        self,
        directory: Path,
        recorder: Recorder | None,
        progress: Progress | None,
        stop_requested: Callable[[], bool],
    ) -> str:
        """Run to the last round, or stop on request or where a condition holds."""
        federation = self.setup.federation
        set_hosted_clients(federation.hosted.tolist())
        try:
            status = self._rounds(directory, recorder, progress, stop_requested)
        except BaseException:
            self.writer.settle()
            raise
        with self.clock.measure("checkpoint"):
            self.writer.finish()
        return status

    def _rounds(
        self,
        directory: Path,
        recorder: Recorder | None,
        progress: Progress | None,
        stop_requested: Callable[[], bool],
    ) -> str:
        setup = self.setup

        def store() -> None:
            parts = (recorder.metrics, recorder.configuration) if recorder else ("", {})
            self.checkpoint(directory, *parts)

        if self.round == 0 and self.evaluate(recorder, progress):
            store()
        while self.reason is None and self.round < setup.rounds:
            self.advance()
            stopping, is_due = self.agree(stop_requested(), self._is_due())
            last = self.round == setup.rounds
            if last or self.round % setup.evaluation.every == 0:
                is_due |= self.evaluate(recorder, progress)
            if last or stopping or is_due or self.round % setup.checkpoint.every == 0:
                store()
            if progress is not None:
                progress.round(self.round)
            if stopping and not last and self.reason is None:
                return "stopped"
        if self.round == setup.rounds:
            return FINISHED
        self._end_here(recorder)
        return STOPPED_AT

    def _end_here(self, recorder: Recorder | None) -> None:
        """Make this round the last one, after which alone some results are made."""
        self.setup = dataclasses.replace(self.setup, rounds=self.round)
        privacy = self.setup.exchange.privacy
        observed = privacy is not None and privacy.observers != "none"
        if not (observed or self.setup.evaluation.unseen_shares):
            return
        with self.clock.measure("evaluation"):
            evaluated = self.evaluated()
            if recorder is not None and evaluated is not None:
                recorder.clients(*evaluated[1:], *self._names)

    def advance(self, active: np.ndarray | None = None) -> None:
        """Run one round among its participants."""
        setup, exchange = self.setup, self.setup.exchange
        federation, communicator = setup.federation, setup.federation.communicator
        self.round += 1
        at_round(self.round)
        active = taking_part(setup, self.round) if active is None else active
        drops = setup.on_divergence == "drop"
        local = self.clock.seconds["local"]
        while True:
            self.active = int(active.sum())
            if not self.active and not setup.algorithm.moves_without_clients():
                return
            booked = dict(vars(exchange.ledger))
            try:
                moved, positions = self._round(active)
                if drops:
                    where = f"state after round {self.round}"
                    is_rows, ids = exchange.shared_is_rows, federation.hosted[positions]
                    check_finite(communicator, moved, is_rows, ids, where)
                break
            except (Diverged, PeerDiverged) as error:
                bad = all_diverged(communicator, error) if drops else []
                if not active[bad].any() or not active.sum() > active[bad].sum():
                    raise
                exchange.ledger = Ledger(**booked)
                active[bad] = False
                if communicator.rank == 0:
                    logging.getLogger("mpifed").warning(
                        f"round {self.round} was run without client"
                        f"{'s' * (len(bad) > 1)} {', '.join(map(str, bad))}, whose numbers were "
                        "not finite"
                    )
        with self.clock.measure("local"):
            self.rows.merge(moved, positions)
        if self.simulated is not None:
            local = self.clock.seconds["local"] - local
            self.simulated.advance(self.round, active, Ledger(**booked), exchange.ledger, local)

    def _round(self, active: np.ndarray) -> tuple[states.RunState, np.ndarray]:
        """Run this round among ``active`` clients, bool (n_clients,)."""
        setup, federation = self.setup, self.setup.federation
        began, exchanged = time.perf_counter(), setup.exchange.seconds
        positions = np.flatnonzero(active[federation.hosted])
        ids = federation.hosted[positions]
        effort = efforts(federation.participation, ids, self.seed, self.round)
        everyone = len(positions) == len(federation.hosted)
        if everyone and effort is None:
            clients = self.everyone
        else:
            clients = self.shards.clients(positions, effort)
        draws = Draws(self.seed, self.round)
        part = self.rows.of(positions)
        channel = setup.exchange.at(self.round, active, part.memory)
        if isinstance(channel, GossipChannel):
            setup.hold_out(channel, clients)
        with torch.no_grad():
            advance = setup.algorithm.round if self.active else setup.algorithm.idle
            moved = advance(part.algorithm, clients, channel, draws)
        check_state(setup.algorithm, "round", moved, part.algorithm)
        spent, exchanging = time.perf_counter() - began, setup.exchange.seconds - exchanged
        self.clock.seconds["exchange"] += exchanging
        self.clock.seconds["local"] += spent - exchanging
        return states.RunState(moved, channel.memory), positions

    def _is_due(self) -> bool:
        """Whether the last checkpoint was begun as long ago as checkpoint.minutes says."""
        minutes = self.setup.checkpoint.minutes
        return minutes is not None and time.perf_counter() - self._saved >= 60 * minutes

    def agree(self, stop: bool, is_due: bool = False) -> tuple[bool, bool]:
        """Return whether any rank was asked to stop, and whether a checkpoint is due on any."""
        is_rows, (changed, ids) = self.setup.exchange.shared_is_rows, self.rows.unchecked()
        bad = bad_clients(changed, is_rows, ids)
        first = -float(bad[0]) if bad else -np.inf
        flags = np.array([float(stop), first, float(self.writer.failed), float(is_due)])
        answer = self.setup.federation.communicator.max(flags)
        raise_first_diverged(-answer[1], bad, f"state after round {self.round}")
        if server_diverged(self.state, is_rows):
            raise Diverged(
                f"the server's state after round {self.round} is not finite: the training diverged",
                [],
            )
        if answer[2]:
            self.writer.finish()
            raise PeerFailure
        if not self._compared:
            server_digest(self.setup, self.state)
            self._compared = True
        return bool(answer[0]), bool(answer[3])

    def digest(self) -> str | None:
        """Return the digest of the state on rank 0, None elsewhere."""
        return digest(self.setup, self.rows)

    def evaluate(self, recorder: Recorder | None, progress: Progress | None) -> bool:
        """Score clients and record a row of metrics.csv and clients.h5.

        Returns whether this round is to be stored, as the best so far or since the run stops here.
        """
        with self.clock.measure("evaluation"):
            evaluated = self.evaluated()
            if recorder is not None and evaluated is not None:
                self._record(evaluated, recorder)
        if progress is not None:
            progress.scores(self.round, self.scores)
        by_function, decision = self.report(self.scores), Decision(None, False)
        if self.stopping is not None:
            decision = self.stopping.decide(self.scores, by_function)
        self.reason, stores = self.setup.federation.communicator.broadcast_object(decision)
        return stores or self.reason is not None

    def _record(
        self,
        evaluated: tuple[dict[str, Any], ClientResults, dict[str, np.ndarray]],
        recorder: Recorder,
    ) -> None:
        self.scores, results, learnt = evaluated
        recorder.row(self.scores)
        self.first_scores = self.first_scores or self.scores
        self.has_leapt = self.has_leapt or warn_of_leap(self.first_scores, self.scores)
        recorder.clients(results, learnt, *self._names)
        if not self.has_infinite_losses:
            self.has_infinite_losses = warn_of_losses(
                results, self.round, advice(self.setup.algorithm)
            )

    @property
    def _names(self) -> tuple[Sequence[str], Sequence[str]]:
        """The names of the clients and of the classes."""
        description = self.setup.dataset.description
        return description.client_names, description.class_names

    @torch.no_grad()
    def evaluated(self) -> tuple[dict[str, Any], ClientResults, dict[str, np.ndarray]] | None:
        """Return a row of metrics.csv, scores and learnt results on rank 0; None elsewhere."""
        at = Draws(self.seed, self.round)
        evaluation = evaluations.evaluate(self.setup, self.shards, self.state, at)
        learnt = evaluation.learnt
        if self.round == self.setup.rounds:
            learnt = learnt | evaluations.of_observers(self.setup)
        digest = self.digest()
        if evaluation.results is None:
            return None
        ledger = self.setup.exchange.ledger
        row = {
            "round": self.round,
            "seconds": round(self.elapsed, 3),
            "active_clients": self.active,
            "up_bits": ledger.up_bits,
            "down_bits": ledger.down_bits,
            "state_digest": digest,
            **evaluation.row(self.setup.evaluation.client_weights),
        }
        if self.simulated is not None:
            row |= self.simulated.row
        if self.accountant is not None:
            row[EPSILON] = self.accountant(self.round)
        return row, evaluation.results, learnt

    def checkpoint(self, directory: Path, metrics: str, configuration: dict[str, Any]) -> None:
        """Begin to write a checkpoint into a run directory.

        Rank 0 has the rows of metrics.csv so far and the configuration as it is stored.
        """
        self._saved = time.perf_counter()
        with self.clock.measure("checkpoint"):
            setup, data = self.setup, self.setup.dataset.description
            meta = checkpoint.Meta(
                self.round,
                self.seed,
                setup.horizon,
                configuration,
                metrics,
                dict(vars(setup.exchange.ledger)),
                {**self.clock.seconds, "total": self.elapsed},
                None if isinstance(data, ProblemDescription) else data,
                self.simulated.stored() if self.simulated is not None else None,
            )
            self.writer.start(
                checkpoint.path_of(directory / "checkpoints", self.round),
                meta,
                self.state,
                setup.exchange.shared_is_rows,
                setup.exchange.arrays(),
                setup.checkpoint.keep,
                self.stopping.stored_round if self.stopping is not None else None,
            )
