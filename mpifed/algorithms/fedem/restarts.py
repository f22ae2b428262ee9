"""Several beginnings of FedEM, of which the one with the best training likelihood is kept.

EM ends in a stationary point of the likelihood that depends on where it begins (Marfoq et al. 2021,
Theorem 3.2 promises no more). A trial is a run of a few rounds with all clients, drawn from a seed
of its own. What trials send is booked like any other message, in round 0.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mpifed import state as states
from mpifed.exchange.base import Exchange
from mpifed.exchange.measuring import agreed, total
from mpifed.federation.clients import Clients, Draws
from mpifed.random import stream
from mpifed.supervision.stop_requests import raise_if_stop_requested

S = TypeVar("S")


NOTHING_LOST = ("none", "identity")
"""Compressors that trials may send through: they send whole messages."""


def refuse_remembering(configuration: Any) -> str | None:
    """Return why trials do not fit the compression or correction of a run, or None."""
    tried = configuration.algorithm.options.get("restarts", 1)
    compression = configuration.compression.name
    corrects = configuration.exchange.options.get("correction")
    for key, name in (
        ("compression", compression if compression not in NOTHING_LOST else None),
        ("exchange.correction", corrects and corrects.name),
    ):
        if name and tried > 1:
            return (
                f"algorithm.restarts is {tried}, but {key} is '{name}': trials of beginnings send "
                f"whole messages and remember none; allowed: {key}=none, or algorithm.restarts=1"
            )
    return None


@dataclass
class Restarts:
    """Trials of several beginnings.

    Attributes
    ----------
    trials : int
        How many; with one nothing is tried. The first begins as a run without trials would.
    rounds : int
        Rounds of each.
    keep_training : bool
        Whether the best trial's last state is kept, or its first.
    reached : list of float
        The training log-likelihood that each trial reached.
    """

    trials: int
    rounds: int
    keep_training: bool
    reached: list[float] = field(default_factory=list)

    def best(
        self,
        state: S,
        begin: Callable[[Draws], S],
        round_of: Callable[[S, Clients, Any, Draws], S],
        likelihood: Callable[[S, Clients], Tensor],
        clients: Clients,
        exchange: Exchange,
        seed: int,
    ) -> S:
        """Run the trials and return the best one's state. Collective.

        Parameters
        ----------
        state : dataclass
            The first state of the run, which is returned if there is one trial.
        begin : callable
            Makes the first state of a trial from its draws, for all hosted clients.
        round_of : callable
            One round, as ``Algorithm.round``.
        likelihood : callable
            The training log-likelihood of each client in training, float64 (clients,).
        clients : Clients
            All clients hosted here.
        exchange : Exchange
            Books what the trials send.
        seed : int
            The seed of the run.

        Raises
        ------
        AgreedStop
            Where a rank was asked to stop; a resumed run begins the trials again.
        """
        if self.trials == 1:
            return state
        federation, is_rows = clients.federation, exchange.shared_is_rows
        active = ~federation.unseen
        rows = torch.from_numpy(np.flatnonzero(active[clients.ids]))
        training = Clients(federation, clients.shards, clients.rows[rows.numpy()])
        best, self.reached = state, []
        for trial in range(self.trials):
            own = seed if trial == 0 else int(stream(seed, "restart", trial).integers(1 << 62))
            first = whole = begin(Draws(own, 0))
            for k in range(1, self.rounds + 1):
                agreed(clients, raise_if_stop_requested)
                part = states.select(whole, rows, is_rows)
                moved = round_of(part, training, exchange.at(k, active), Draws(own, k))
                whole = states.merge(whole, moved, rows, is_rows)
            last = likelihood(states.select(whole, rows, is_rows), training)
            here = float(total(training, last[:, None])[0])
            if not self.reached or here > max(self.reached):
                best = whole if self.keep_training else first
            self.reached.append(here)
        return best

    def remarks(self) -> list[str]:
        """Return a line on each trial, for the log."""
        return [
            f"beginning {i} of {self.trials}: training log-likelihood {reached:.8g} after "
            f"{self.rounds} rounds"
            for i, reached in enumerate(self.reached, 1)
        ]
