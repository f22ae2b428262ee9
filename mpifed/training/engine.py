"""The loop over rounds: sample, train, agree, evaluate, record, checkpoint, stop on request."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpifed import state as states
from mpifed.algorithms.returned import check_state
from mpifed.checkpoint import files as checkpoint
from mpifed.checkpoint.background import Writer
from mpifed.config.configuration import to_mapping
from mpifed.errors import Diverged, PeerDiverged, PeerFailure, raise_first_diverged
from mpifed.exchange.base import Ledger
from mpifed.federation.clients import Clients, Draws
from mpifed.federation.participation import efforts
from mpifed.mpi.agreement import share_hosted_clients
from mpifed.theory.accounting import EPSILON, accountant_of
from mpifed.training import divergence
from mpifed.training import evaluation as evaluations
from mpifed.training.asynchronous import clock_of, taking_part
from mpifed.training.build import Setup
from mpifed.training.channels import channel_of
from mpifed.training.clock import Clock, timed
from mpifed.training.digest import digest
from mpifed.training.progress import Progress
from mpifed.training.rows import rows_of
from mpifed.training.run_directory import Recorder
from mpifed.training.samples import Samples
from mpifed.training.scores import ClientResults, warn_of_losses
from mpifed.watchdog.heartbeat import at_round


class Engine:
    """The state of a run and the loop that advances it; all methods are collective."""

    def __init__(
        self, setup: Setup, samples: Samples, clock: Clock, directory: Path | None = None
    ) -> None:
        self.setup, self.samples, self.clock = setup, samples, clock
        self.seed = setup.configuration.seed
        self.rows = rows_of(setup, directory)
        self.rows.take(setup.first_state(self.everyone))
        self.round = 0
        self.active: int | None = None
        self.scores: dict[str, Any] = {}
        self.tell: Callable[[Mapping[str, Any]], None] = lambda scores: None
        self.has_infinite_losses = False
        self.writer = Writer(setup.federation)
        self.simulated = clock_of(setup)
        options = setup.configuration.privacy
        private = options.is_asked_for and setup.federation.communicator.rank == 0
        self.accountant = accountant_of(options, setup.federation, self.seed) if private else None
        self._began = time.perf_counter()

    @property
    def everyone(self) -> Clients:
        """All clients hosted here."""
        return self.samples.among_hosted(np.arange(len(self.setup.federation.hosted)))

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
            made = algorithm.prepare(before.algorithm, self.everyone, self.setup.exchange, draws)
            check_state(algorithm, "prepare", made, before.algorithm)
            memory = before.memory
            if self.setup.exchange.values_kept:
                memory = self.setup.first_memory(made, len(self.everyone))
            self.rows.take(states.RunState(made, memory))

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
        """Run to the last round, or stop on request."""
        federation = self.setup.federation
        share_hosted_clients(federation.communicator, federation.hosted)
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
        configuration = self.setup.configuration
        if self.round == 0:
            self.evaluate(recorder, progress)
        while self.round < configuration.rounds:
            self.advance()
            stopping = self.agree(stop_requested())
            last = self.round == configuration.rounds
            if last or self.round % configuration.evaluation.every == 0:
                self.evaluate(recorder, progress)
            if last or stopping or self.round % configuration.checkpoint.every == 0:
                self._checkpoint(directory, recorder)
            if progress is not None:
                progress.round(self.round)
            if stopping and not last:
                return "stopped"
        return "finished"

    def advance(self, active: np.ndarray | None = None) -> None:
        """Run one round among its participants."""
        setup, exchange = self.setup, self.setup.exchange
        federation, communicator = setup.federation, setup.federation.communicator
        self.round += 1
        at_round(self.round)
        active = taking_part(setup, self.round) if active is None else active
        drops = setup.configuration.on_divergence == "drop"
        local = self.clock.seconds["local"]
        while True:
            self.active = int(active.sum())
            if not self.active and not setup.algorithm.steps_without_clients:
                return
            booked = dict(vars(exchange.ledger))
            try:
                moved, here = self._round(active)
                if drops:
                    where = f"state after round {self.round}"
                    is_rows, ids = exchange.shared_is_rows, federation.hosted[here]
                    divergence.refuse(communicator, moved, is_rows, ids, where)
                break
            except (Diverged, PeerDiverged) as error:
                bad = divergence.all_diverged(communicator, error) if drops else []
                if not active[bad].any() or not active.sum() > active[bad].sum():
                    if bad and isinstance(error, Diverged):
                        raise divergence.of_all(error) from error
                    raise
                exchange.ledger = Ledger(**booked)
                active[bad] = False
                if communicator.rank == 0:
                    divergence.report(bad, self.round)
        with self.clock.measure("local"):
            self.rows.merge(moved, here)
        if self.simulated is not None:
            local = self.clock.seconds["local"] - local
            self.simulated.advance(self.round, active, Ledger(**booked), exchange.ledger, local)

    def _round(self, active: np.ndarray) -> tuple[states.RunState, np.ndarray]:
        """Run this round among ``active`` clients, bool (n_clients,)."""
        setup, federation = self.setup, self.setup.federation
        began, exchanged = time.perf_counter(), self.clock.seconds["exchange"]
        here = np.flatnonzero(active[federation.hosted])
        participation = setup.configuration.participation
        effort = efforts(participation, federation.hosted[here], self.seed, self.round)
        everyone = len(here) == len(federation.hosted)
        if everyone and effort is None:
            clients = self.everyone
        else:
            clients = self.samples.clients(here, effort)
        draws = Draws(self.seed, self.round)
        part = self.rows.of(here)
        channel = timed(channel_of(setup, self.round, active, part.memory), self.clock)
        with torch.no_grad():
            moved = setup.algorithm.round(part.algorithm, clients, channel, draws)
        check_state(setup.algorithm, "round", moved, part.algorithm)
        spent = time.perf_counter() - began
        self.clock.seconds["local"] += spent - (self.clock.seconds["exchange"] - exchanged)
        return states.RunState(moved, channel.memory), here

    def agree(self, stop: bool) -> bool:
        """Return whether any rank was asked to stop."""
        is_rows, (changed, ids) = self.setup.exchange.shared_is_rows, self.rows.unchecked()
        own = divergence.bad_clients(changed, is_rows, ids)
        first = -float(own[0]) if own else -np.inf
        flags = np.array([float(stop), first, float(self.writer.failed)])
        answer = self.setup.federation.communicator.max(flags)
        raise_first_diverged(-answer[1], own, f"state after round {self.round}")
        if divergence.server_diverged(self.state, is_rows):
            raise divergence.of_the_server(self.round)
        if answer[2]:
            self.writer.finish()
            raise PeerFailure
        return bool(answer[0])

    def digest(self) -> str | None:
        """Return the digest of the state on rank 0, None elsewhere."""
        return digest(self.setup, self.state, self.rows.release)

    def remarks(self) -> list[str]:
        """Return lines for the log, before the rounds begin."""
        return evaluations.remarks(self.setup, self.state, self.samples)

    def evaluate(self, recorder: Recorder | None, progress: Progress | None) -> None:
        """Score clients and record a row of metrics.csv and clients.h5."""
        with self.clock.measure("evaluation"):
            found = self.evaluated()
            if recorder is not None and found is not None:
                self._record(found, recorder)
        if progress is not None:
            progress.scores(self.round, self.scores)
        self.tell(self.scores)

    def _record(
        self, found: tuple[dict[str, Any], ClientResults, dict[str, np.ndarray]], recorder: Recorder
    ) -> None:
        self.scores, results, learnt = found
        recorder.row(self.scores)
        recorder.clients(results, learnt)
        if not self.has_infinite_losses:
            self.has_infinite_losses = warn_of_losses(
                results, self.round, divergence.advice(self.setup.algorithm)
            )

    @torch.no_grad()
    def evaluated(self) -> tuple[dict[str, Any], ClientResults, dict[str, np.ndarray]] | None:
        """Return a row of metrics.csv, scores and learnt results on rank 0; None elsewhere."""
        at = Draws(self.seed, self.round)
        found = evaluations.evaluate(self.setup, self.samples, self.state, at)
        self.rows.release()
        digest = self.digest()
        if found.results is None:
            return None
        ledger = self.setup.exchange.ledger
        row = {
            "round": self.round,
            "seconds": round(self.elapsed, 3),
            "active_clients": self.active,
            "up_bits": ledger.up_bits,
            "down_bits": ledger.down_bits,
            "state_digest": digest,
            **found.row(self.setup.configuration.evaluation.client_weights),
        }
        if self.simulated is not None:
            row |= self.simulated.row
        if self.accountant is not None:
            row[EPSILON] = self.accountant(self.round)
        return row, found.results, found.learnt

    def _checkpoint(self, directory: Path, recorder: Recorder | None) -> None:
        with self.clock.measure("checkpoint"):
            setup, data = self.setup, self.setup.dataset.description
            meta = checkpoint.Meta(
                self.round,
                self.seed,
                setup.horizon,
                to_mapping(setup.configuration),
                recorder.columns if recorder else [],
                list(recorder.rows) if recorder else [],
                dict(vars(setup.exchange.ledger)),
                {**self.clock.seconds, "total": self.elapsed},
                data if data.problem is None else None,
                self.simulated.stored() if self.simulated is not None else None,
            )
            self.writer.start(
                checkpoint.path_of(directory / "checkpoints", self.round),
                meta,
                self.state,
                setup.exchange.shared_is_rows,
                setup.exchange.arrays(),
                setup.configuration.checkpoint.keep,
                self.rows.release if self.rows.on_disk else None,
            )
