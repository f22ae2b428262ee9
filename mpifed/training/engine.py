"""The loop over rounds: sample, train, agree, evaluate, record, checkpoint, stop on request."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mpifed import state as states
from mpifed.algorithms.returned import check_state
from mpifed.checkpoint import files as checkpoint
from mpifed.checkpoint.background import Writer
from mpifed.config.configuration import to_mapping
from mpifed.data.base import Shards
from mpifed.errors import Diverged, PeerDiverged, PeerFailure, raise_first_diverged
from mpifed.exchange.ledger import Ledger
from mpifed.federation.clients import Clients, Draws, participants
from mpifed.federation.participation import efforts
from mpifed.mpi.agreement import share_hosted_clients
from mpifed.supervision.heartbeat import at_round
from mpifed.training import divergence
from mpifed.training import evaluation as appraisal
from mpifed.training.build import Setup
from mpifed.training.clock import Clock, timed
from mpifed.training.progress import Progress
from mpifed.training.run_directory import Recorder
from mpifed.training.scores import warn_of_losses
from mpifed.training.simulated import COLUMN, SimulatedClock, is_simulated


class Engine:
    """The state of a run and the loop that advances it; all methods are collective.

    Attributes
    ----------
    setup, shards, clock
        The objects of the run, the samples of the hosted clients, and seconds by phase.
    everyone, training, unseen : Clients
        The hosted clients: all, those in training, and those that only adapt.
    state : RunState
        The state after round ``round``, with a row for each hosted client.
    active : int or None
        Participants of the last round; None before the first.
    scores : dict
        The last recorded row of metrics.csv, on rank 0.
    """

    def __init__(self, setup: Setup, shards: Shards, clock: Clock) -> None:
        self.setup, self.shards, self.clock = setup, shards, clock
        federation = setup.federation
        unseen = federation.unseen[federation.hosted]
        self.everyone = Clients(federation, shards, np.arange(len(federation.hosted)))
        self.training = Clients(federation, shards, np.flatnonzero(~unseen))
        self.unseen = Clients(federation, shards, np.flatnonzero(unseen))
        self.seed = setup.configuration.seed
        self.state = setup.first_state(self.everyone)
        self._own: list[torch.Tensor] = []
        """Tensors of the state that the engine made: they have no other owner."""
        self.round = 0
        self.active: int | None = None
        self.scores: dict[str, Any] = {}
        self.has_infinite_losses = False
        self.writer = Writer(federation)
        self.simulated = SimulatedClock(setup) if is_simulated(setup) else None
        self._began = time.perf_counter()

    @property
    def elapsed(self) -> float:
        """Wall seconds of training, over all parts of the run."""
        return self.clock.seconds["total"] + time.perf_counter() - self._began

    def prepare(self) -> None:
        """Run the computations of clients before round 1; a resumed run does not repeat them."""
        with self.clock.measure("local"):
            algorithm, before, draws = self.setup.algorithm, self.state, Draws(self.seed, 0)
            made = algorithm.prepare(before.algorithm, self.everyone, self.setup.exchange, draws)
            check_state(algorithm, "prepare", made, before.algorithm)
            self.state = states.RunState(made, before.memory)

    def restore(self, path: Path, meta: checkpoint.Meta) -> None:
        """Continue from a checkpoint; ``meta`` is what the file records besides the state."""
        exchange, hosted = self.setup.exchange, self.setup.federation.hosted
        self.state = checkpoint.read_state(path, self.state, exchange.shared_is_rows, hosted)
        self._claim(self.state)
        self.round = meta.round
        exchange.ledger = Ledger(**meta.ledger)
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
        """Run to the last round, or stop on request.

        Parameters
        ----------
        directory : Path
            The run directory.
        recorder, progress
            Files and terminal; None on all ranks but rank 0.
        stop_requested : callable
            Returns whether this rank was asked to stop.

        Returns
        -------
        str
            'finished' or 'stopped'.
        """
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

    def advance(self) -> None:
        """Run one round among its participants.

        Under ``on_divergence: drop`` the round is run again without the clients that diverged.
        """
        setup, exchange = self.setup, self.setup.exchange
        federation, communicator = setup.federation, setup.federation.communicator
        self.round += 1
        at_round(self.round)
        active = participants(federation, setup.configuration.participation, self.seed, self.round)
        drops = setup.configuration.on_divergence == "drop"
        local = self.clock.seconds["local"]
        while True:
            self.active = int(active.sum())
            if not self.active and not setup.algorithm.steps_without_clients:
                return
            booked = dict(vars(exchange.ledger))
            try:
                after = self._round(active)
                if drops:
                    where = f"state after round {self.round}"
                    is_rows, ids = exchange.shared_is_rows, self.everyone.ids
                    divergence.refuse(communicator, after, is_rows, ids, where)
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
        self.state = after
        if self.simulated is not None:
            local = self.clock.seconds["local"] - local
            self.simulated.advance(self.round, active, Ledger(**booked), exchange.ledger, local)

    def _round(self, active: np.ndarray) -> states.RunState:
        """Return the state after this round among ``active`` clients, bool (n_clients,)."""
        setup, federation = self.setup, self.setup.federation
        began, exchanged = time.perf_counter(), self.clock.seconds["exchange"]
        here = np.flatnonzero(active[federation.hosted])
        participation = setup.configuration.participation
        effort = efforts(participation, federation.hosted[here], self.seed, self.round)
        everyone = len(here) == len(self.everyone)
        if everyone and effort is None:
            clients = self.everyone
        else:
            clients = Clients(federation, self.shards, here, effort)
        draws = Draws(self.seed, self.round)
        is_rows, rows = setup.exchange.shared_is_rows, torch.from_numpy(here)
        part = self.state if everyone else states.select(self.state, rows, is_rows)
        made = setup.exchange.at(self.round, active, part.memory)
        channel = timed(made, self.clock)
        with torch.no_grad():
            moved = setup.algorithm.round(part.algorithm, clients, channel, draws)
        check_state(setup.algorithm, "round", moved, part.algorithm)
        after = states.RunState(moved, channel.memory)
        if everyone:
            self._own = []
        else:
            after = states.merge(self.state, after, rows, is_rows, self._own)
            self._claim(after)
        spent = time.perf_counter() - began
        self.clock.seconds["local"] += spent - (self.clock.seconds["exchange"] - exchanged)
        return after

    def _claim(self, state: states.RunState) -> None:
        """Note that the engine made the rows of ``state``, so that rounds may overwrite them."""
        # A round that may be run again needs the state before it.
        if self.setup.configuration.on_divergence != "drop":
            found = states.tensors(state, self.setup.exchange.shared_is_rows)
            self._own = [tensor for _, tensor, is_rows in found if is_rows]

    def agree(self, stop: bool) -> bool:
        """Return whether any rank was asked to stop.

        Raises ``Diverged`` or ``PeerDiverged`` where a state is not finite, and the failure of the
        last checkpoint.
        """
        is_rows, ids = self.setup.exchange.shared_is_rows, self.everyone.ids
        own = divergence.bad_clients(self.state, is_rows, ids)
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
        return appraisal.digest(self.setup, self.state)

    def remarks(self) -> list[str]:
        """Return lines for the log about the algorithm, before its rounds begin."""
        return appraisal.remarks(self.setup, self.state, self.training)

    def evaluate(self, recorder: Recorder | None, progress: Progress | None) -> None:
        """Score all clients and record a row of metrics.csv and clients.h5."""
        with self.clock.measure("evaluation"), torch.no_grad():
            draws = Draws(self.seed, self.round)
            found = appraisal.appraise(self.setup, self.state, self.training, self.unseen, draws)
            if recorder is None or found.results is None:
                return
            ledger = self.setup.exchange.ledger
            self.scores = {
                "round": self.round,
                "seconds": round(self.elapsed, 3),
                "active_clients": self.active,
                "up_bits": ledger.up_bits,
                "down_bits": ledger.down_bits,
                **found.row(self.setup.configuration.evaluation.client_weights),
            }
            if self.simulated is not None:
                self.scores[COLUMN] = self.simulated.seconds
            recorder.row(self.scores)
            recorder.clients(found.results, found.learnt)
            if not self.has_infinite_losses:
                self.has_infinite_losses = warn_of_losses(
                    found.results, self.round, divergence.advice(self.setup.algorithm)
                )
        if progress is not None:
            progress.scores(self.round, self.scores)

    def _checkpoint(self, directory: Path, recorder: Recorder | None) -> None:
        with self.clock.measure("checkpoint"):
            setup = self.setup
            data = setup.dataset.description
            folder = directory / "checkpoints"
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
                checkpoint.path_of(folder, self.round),
                meta,
                self.state,
                setup.exchange.shared_is_rows,
                setup.exchange.arrays(),
                setup.configuration.checkpoint.keep,
            )
