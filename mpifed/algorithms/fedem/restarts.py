"""Several beginnings of FedEM, of which the one with the best training likelihood is kept.

EM ends in a stationary point of the likelihood that depends on where it begins (Marfoq et al. 2021,
Theorem 3.2 promises no more). A trial is a run of a few rounds with all clients, drawn from a seed
of its own. What trials send is booked like any other message, in round 0.
"""

from __future__ import annotations

from collections.abc import Callable
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


def best_beginning(
    begin: Callable[[Draws], S],
    round_of: Callable[[S, Clients, Any, Draws], S],
    likelihood: Callable[[S, Clients], Tensor],
    clients: Clients,
    exchange: Exchange,
    seed: int,
    trials: int,
    rounds: int,
    keep_training: bool,
) -> tuple[S, list[float]]:
    """Run trials and return the best one's state. Collective.

    Parameters
    ----------
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
    trials : int
        How many trials; the first begins as a run without trials would.
    rounds : int
        Rounds of each.
    keep_training : bool
        Whether the best trial's last state is returned, or its first.

    Returns
    -------
    state : dataclass
        The state of the best trial.
    likelihoods : list of float
        The training log-likelihood that each trial reached.

    Raises
    ------
    AgreedStop
        Where a rank was asked to stop; a resumed run begins the trials again.
    """
    federation, is_rows = clients.federation, exchange.shared_is_rows
    active = ~federation.unseen
    rows = torch.from_numpy(np.flatnonzero(active[clients.ids]))
    training = Clients(federation, clients.shards, clients.rows[rows.numpy()])
    best: tuple[float, S] | None = None
    found: list[float] = []
    for trial in range(trials):
        own = seed if trial == 0 else int(stream(seed, "restart", trial).integers(1 << 62))
        first = begin(Draws(own, 0))
        whole = first
        for k in range(1, rounds + 1):
            agreed(clients, raise_if_stop_requested)
            part = states.select(whole, rows, is_rows)
            moved = round_of(part, training, exchange.at(k, active), Draws(own, k))
            whole = states.merge(whole, moved, rows, is_rows)
        last = likelihood(states.select(whole, rows, is_rows), training)
        reached = float(total(training, last[:, None])[0])
        found.append(reached)
        if best is None or reached > best[0]:
            best = reached, whole if keep_training else first
    assert best is not None
    return best[1], found
