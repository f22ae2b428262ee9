"""The state of a method after some rounds under a server."""

from __future__ import annotations

import numpy as np

from mpifed.exchange.server import Server
from mpifed.federation.clients import Draws


def after(algorithm, clients, rounds: int, dtype):
    """The state after some rounds in which all clients take part, under a server."""
    exchange = Server(clients.federation, 0)
    state = algorithm.init(clients, exchange, Draws(0, 0), dtype)
    for round in range(1, rounds + 1):
        channel = exchange.at(round, np.ones(len(clients), bool))
        state = algorithm.round(state, clients, channel, Draws(0, round))
    return state
