"""FedMM's methods round by round on one rank, on data given sample by sample."""

from __future__ import annotations

import numpy as np
import torch

from mpifed.algorithms.fedmm.fedmm import training_objective
from mpifed.components.registry import find
from mpifed.data.base import Dataset, Description, Shards, Split
from mpifed.exchange.server import Server
from mpifed.federation.clients import Clients, Draws, Federation, participants
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.base import none
from mpifed.mpi.communicator import Alone
from mpifed.state import merge, select


def split_of(parts, width):
    """Clients' samples; columns from ``width`` on are what is regressed on."""
    counts = np.array([len(part) for part in parts])
    z = torch.from_numpy(np.concatenate(parts).astype(float))
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Split(z[:, :width], z[:, width:], offsets)


def data_of(parts, participation=1.0, targets=0, tests=None):
    """Clients with the samples ``parts``; the last ``targets`` columns are what is regressed on."""
    width = parts[0].shape[1] - targets
    nothing = [part[:0] for part in parts]
    train, test = split_of(parts, width), split_of(tests or nothing, width)
    ids, empty = np.arange(len(parts)), split_of(nothing, width)
    task = "regression" if targets else "unlabelled"
    counts, zeros, tested = (s.counts for s in (train, empty, test))
    description = Description("test", (width,), targets, counts, zeros, tested, task)
    federation = Federation(Alone(), 0 * ids, ids < 0, counts, participation)
    return Clients(federation, Shards(ids, train, empty, test), ids), description


class Run:
    """A method round by round on one rank, with participation as the engine does it."""

    def __init__(self, kind, data, surrogate, compressor=None, seed=0, **options):
        self.everyone, description = data
        model = none(description)
        solver = LocalSolver(model, LocalOptions(), 1, 1, torch.device("cpu"))
        self.method = kind(model, solver, surrogate=surrogate, **options)
        if isinstance(compressor, tuple):
            compressor = find("compression", compressor[0])(**compressor[1])
        self.server = Server(self.everyone.federation, seed, None, compressor)
        self.seed, self.round = seed, 0
        self.state = self.method.init(self.everyone, self.server, Draws(seed, 0), torch.float64)

    def go(self, rounds=1):
        federation = self.everyone.federation
        for _ in range(rounds):
            self.round += 1
            active = participants(federation, federation.participation, self.seed, self.round)
            rows = np.flatnonzero(active)
            clients = Clients(federation, self.everyone.shards, rows)
            at = torch.from_numpy(rows)
            part = self.method.round(
                select(self.state, at, False),
                clients,
                self.server.at(self.round, active),
                Draws(self.seed, self.round),
            )
            self.state = merge(self.state, part, at, False)
        return self

    def start_from(self, s, variates=None):
        if variates is None:
            variates = torch.zeros_like(self.state.variates)
        weights = self.method.weights(self.everyone)
        self.state = type(self.state)(s, s.clone(), variates, weights @ variates)
        return self

    @property
    def s(self):
        return self.state.surrogate

    @property
    def theta(self):
        return self.method.parameters(self.surrogate, self.s)

    @property
    def surrogate(self):
        return self.method.surrogate_of(self.state)

    def objective(self):
        method, everyone = self.method, self.everyone
        weights = method.weights(everyone)
        return training_objective(self.surrogate, self.theta, everyone, weights, method.with_target)


class Unequal(Dataset):
    """Client i has SIZES[i] samples, of one number each, all i + 1; as ``fedmm_runs:Unequal``."""

    SIZES = np.array([1, 7, 2, 4, 6])

    def __init__(self, n_clients, run_seed, communicator):
        sizes = self.SIZES[:n_clients]
        self.description = Description(
            "unequal", (1,), 0, sizes, 0 * sizes, 0 * sizes, "unlabelled"
        )

    def load(self, ids, dtype):
        parts = [np.full((self.SIZES[i], 1), i + 1.0) for i in ids]
        empty = split_of([part[:0] for part in parts], 1)
        return Shards(ids, split_of(parts, 1), empty, empty)
