"""Gossip by itself, whose rounds a test plays: an exchange, and descent through it."""

from __future__ import annotations

import numpy as np
import torch
from quadratics import SEED, D, N, gradients

from mpifed.exchange.gossip import Gossip
from mpifed.exchange.mixing_options import completed_options
from mpifed.federation.federation import Federation
from mpifed.mpi.communicator import Alone

MH = "metropolis_hastings"


def exchange_of(correction, topology="ring", weights=MH, schedule="static", n=N, part=1.0, **sent):
    given = {"topology": topology, "weights": weights, "schedule": schedule}
    options = completed_options(
        {**given, "consensus_step": sent.get("step"), "correction": correction}, n
    )
    stored = Gossip.prepare(Alone(), n, SEED, options)
    federation = Federation(Alone(), np.zeros(n, int), np.zeros(n, bool), np.ones(n, int), part)
    return Gossip(federation, SEED, stored, sent.get("compressor"), **options)


class Descent:
    """Gradient descent through an exchange: one full gradient a round, ``present(k)`` take part."""

    def __init__(self, exchange, eta, gradient=gradients, x=None, present=None):
        self.exchange, self.eta, self.gradient, self.round = exchange, eta, gradient, 0
        self.x = torch.zeros(exchange.federation.n_clients, D, dtype=torch.float64)
        if x is not None:
            self.x = torch.from_numpy(x.copy())
        self.memory = exchange.remember([self.x], len(self.x), torch.float64)
        self.present = present or (lambda k: np.ones(len(self.x), bool))

    def go(self, rounds):
        for _ in range(rounds):
            self.round += 1
            active = self.present(self.round)
            rows = torch.from_numpy(np.flatnonzero(active))
            kept = getattr(self.memory, "corrections", None)
            memory = self.memory if kept is None else type(self.memory)(kept[rows])
            channel = self.exchange.at(self.round, active, memory)
            before = self.x[rows]
            moved = before - self.eta * torch.from_numpy(self.gradient(self.x.numpy()))[rows]
            ones = torch.ones(len(rows), dtype=torch.float64)
            self.x = self.x.index_copy(0, rows, channel.average(moved, ones, before=before))
            if kept is not None:
                new = channel.memory.corrections
                self.memory = type(self.memory)(kept.index_copy(0, rows, new))
        return self.x.numpy()


def matrix_of(exchange, k=1):
    return exchange.schedule.matrix(k).to_dense()
