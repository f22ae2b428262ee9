"""A method whose clients move as a test says: what an exchange makes of it, round by round."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed import state
from mpifed.method import Algorithm, Channel, Predictor
from mpifed.testing import Rounds, run_rounds

LINEAR = {"name": "linear", "bias": False}


@dataclass(frozen=True)
class State:
    """The vector of each client, or of all."""

    x: Tensor = state.shared()


class Moves(Algorithm[Channel]):
    """Client i goes from its vector x to x + move(round, ids, x), and all are averaged.

    Both attributes are read when a run is made, so that ``moved`` can set them before.
    """

    averages_models = "one"
    starts: np.ndarray
    move: Callable[[int, np.ndarray, np.ndarray], np.ndarray]

    def __init__(self, model, local) -> None:
        self.model = model
        self._starts, self._move = Moves.starts, Moves.move

    def init(self, clients, exchange, draws, dtype):
        starts = torch.from_numpy(self._starts).to(dtype)
        if starts.dim() == 1:
            return State(exchange.spread(starts[None]))
        return State(starts[torch.from_numpy(np.asarray(clients.ids))][:, None])

    def round(self, state, clients, channel, draws):
        start = channel.broadcast(state.x)
        updates = self._move(draws.round, clients.ids, start[:, 0].numpy())
        after = start + torch.from_numpy(np.ascontiguousarray(updates)).to(start)[:, None]
        alike = torch.ones(len(clients), dtype=torch.float64)
        given = after.clone(), state.x.clone()
        x = channel.average(after, alike, before=state.x)
        assert torch.equal(after, given[0]) and torch.equal(state.x, given[1])
        return State(x)

    def deploy(self, state, clients, draws):
        return Predictor(state.x)

    def adapt(self, state, clients, exchange, draws):
        return Predictor(exchange.mean(state.x))


def moved(
    move: Callable[[int, np.ndarray, np.ndarray], np.ndarray],
    n: int,
    starts: np.ndarray,
    rounds: int = 1,
    samples: Any = 1,
    **options: Any,
) -> Rounds:
    """The rounds of n clients that start at ``starts``, (size,) or (n, size), and move so."""
    Moves.starts, Moves.move = np.asarray(starts), staticmethod(move)
    size = Moves.starts.shape[-1]
    counts = np.broadcast_to(samples, n)
    data = [(np.ones((count, size)), np.zeros(count, int)) for count in counts]
    return run_rounds(Moves, data, model=LINEAR, rounds=rounds, **options)


def values(rounds: Rounds) -> np.ndarray:
    """The vector under a server, (size,), or those of the clients under gossip, (n, size)."""
    x = rounds.state.x.numpy()
    return x[0] if len(x.shape) == 2 else x[:, 0]
