"""Small convex problems with known answers, and a method on one of them, round by round."""

from __future__ import annotations

import numpy as np
import torch

from mpifed import state as states
from mpifed.algorithms.flix.descent import Descent
from mpifed.components.registry import find
from mpifed.data.base import Description, Shards, Split
from mpifed.exchange.server import Server
from mpifed.federation.clients import Clients, Draws, Federation, participants
from mpifed.local.options import LocalOptions
from mpifed.local.solver import LocalSolver
from mpifed.models.linear import linear
from mpifed.mpi.communicator import Alone

ISOTROPIC = [[[1.0]], [[4.0]]], [[0.0], [3.0]]
ANISOTROPIC = [np.diag([1.0, 4.0]), np.diag([3.0, 1.0])], [[1.0, 0.0], [0.0, 2.0]]


def clients_of(xs, ys, task="regression", participation=1.0):
    """Clients with the given samples, float64, and the description of their data."""
    counts = np.array([len(x) for x in xs])
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    x = torch.from_numpy(np.concatenate(xs).astype(float))
    y = torch.from_numpy(np.concatenate(ys))
    y = y.double()[:, None] if task == "regression" else y.long()
    train, empty = Split(x, y, offsets), Split(x[:0], y[:0], 0 * offsets)
    ids = np.arange(len(xs))
    none = 0 * counts
    kind = {"classification": 2, "regression": 1}[task]
    description = Description("test", x.shape[1:], kind, counts, none, none, task)
    federation = Federation(Alone(), 0 * ids, ids < 0, counts, participation)
    return Clients(federation, Shards(ids, train, empty, empty), ids), description


def quadratics(matrices, centres, **how):
    """f_i = (x - c_i)' A_i (x - c_i) / 2 as least squares: rows sqrt(m) chol(A_i)'."""
    roots = [np.linalg.cholesky(a).T * np.sqrt(len(a)) for a in matrices]
    return clients_of(roots, [r @ c for r, c in zip(roots, centres, strict=True)], **how)


def logistic(n=6, m=40, d=5, seed=0, **how):
    draw = np.random.default_rng(seed)
    xs = [draw.normal(size=(m, d)) + draw.normal(size=d) for _ in range(n)]
    ys = [(x @ draw.normal(size=d) + draw.normal(size=m) > 0).astype(int) for x in xs]
    return clients_of(xs, ys, "classification", **how)


def two_quadratics(**how):
    """f_i = a_i (x - c_i)^2 / 2 with a = (1, 3) and c = (0, 4): one sample a client."""
    return quadratics([[[1.0]], [[3.0]]], [[0.0], [4.0]], **how)


class Run:
    """One method on one data set, round by round; ``local`` has options of local steps.

    ``server`` may be gossip in which all clients take part.
    """

    def __init__(
        self,
        kind,
        data,
        compression=None,
        seed=0,
        dtype=torch.float64,
        local=None,
        server=None,
        **options,
    ):
        self.clients, description = data
        loss = "half_squared" if description.task == "regression" else "auto"
        self.model = options.pop("model", None) or linear(description, bias=False, loss=loss)
        if issubclass(kind, Descent):
            options = {"local_solver": "newton", "local_tolerance": 1e-12, **options}
        longest = int(self.clients.federation.n_train.max()) if local else 1
        local = LocalOptions(**local or {})
        solver = LocalSolver(self.model, local, 1, longest, torch.device("cpu"))
        self.method = kind(self.model, solver, **options)
        compressor = find("compression", compression[0])(**compression[1]) if compression else None
        self.server = server or Server(self.clients.federation, seed, None, compressor)
        draws = Draws(seed, 0)
        self.state = self.method.init(self.clients, self.server, draws, dtype)
        if hasattr(self.method, "prepare"):
            self.state = self.method.prepare(self.state, self.clients, self.server, draws)
        shared = states.shared_tensors(self.state)
        self.memory = self.server.remember(shared, len(self.clients), dtype)
        self.seed, self.round = seed, 0

    @property
    def flix(self):
        return getattr(self.state, "flix", self.state)

    @property
    def x(self):
        return self.flix.model[0].numpy()

    def go(self, rounds=1):
        for _ in range(rounds):
            self.round += 1
            federation = self.clients.federation
            active = participants(federation, federation.participation, self.seed, self.round)
            if not active.any():
                continue
            rows = torch.from_numpy(np.flatnonzero(active))
            some = Clients(federation, self.clients.shards, rows.numpy())
            whole = states.RunState(self.state, self.memory)
            part = states.select(whole, rows, False)
            channel = self.server.at(self.round, active, part.memory)
            draws = Draws(self.seed, self.round)
            moved = self.method.round(part.algorithm, some, channel, draws)
            after = states.merge(whole, states.RunState(moved, channel.memory), rows, False)
            self.state, self.memory = after.algorithm, after.memory
        return self

    def deployed(self):
        """What the clients predict with, (clients, P), or (M, P) where they share it."""
        found = self.method.deploy(self.state, self.clients, Draws(self.seed, self.round))
        return found.parameters.reshape(-1, self.model.n_parameters).numpy()

    def measured(self):
        return self.method.measure(self.state, self.clients, self.server, Draws(0, self.round))


def random_quadratics(n=10, d=20, seed=1, **how):
    draw = np.random.default_rng(seed)
    matrices = []
    for _ in range(n):
        q = np.linalg.qr(draw.normal(size=(d, d)))[0]
        matrices.append(q @ np.diag(draw.uniform(1, 5, d)) @ q.T)
    return quadratics(matrices, list(draw.normal(size=(n, d))), **how)
