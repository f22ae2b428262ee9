"""What the tests of personal models share: unequal clients, and small runs of the engine."""

from __future__ import annotations

import numpy as np
import torch
from convex import clients_of

from mpifed.config.configuration import resolve
from mpifed.federation.clients import participants
from mpifed.mpi.communicator import Alone
from mpifed.training.build import make
from mpifed.training.engine import Clock, Engine

COUNTS = (5, 9, 14, 7)
ROUNDS = 4
LOCAL = {"lr": 0.1, "batch_size": 64}
"""Full-batch steps, so that the order of samples does not matter."""

SYNTHETIC = {
    "clients": 4,
    "rounds": 4,
    "data": {"name": "synthetic", "n_test": 5, "dimension": 6},
    "local": {"batch_size": 16, "momentum": 0.9, "epochs": 2},
}


def regression(participation=0.5, d=3):
    """Least squares of clients with unequal n_t: the federation, and the samples of each."""
    draw = np.random.default_rng(3)
    xs = [draw.normal(size=(count, d)) for count in COUNTS]
    ys = [x @ draw.normal(size=d) + 0.1 * draw.normal(size=len(x)) for x in xs]
    return clients_of(xs, ys, participation=participation), list(zip(xs, ys, strict=True))


def gradient(samples, w):
    """Of sum_j (w' x_j - y_j)^2 / (2 n)."""
    x, y = samples
    return x.T @ (x @ w - y) / len(y)


def taking_part(data, round, seed=0):
    """The clients of a round, as the run draws them."""
    federation = data[0].federation
    return np.flatnonzero(participants(federation, federation.participation, seed, round))


def mean(values, clients, by_samples):
    """The mean of the clients' ``values``, which are by client, as the server takes it."""
    shares = np.array([COUNTS[i] if by_samples else 1 for i in clients], float)
    return sum(s * values[i] for s, i in zip(shares / shares.sum(), clients, strict=True))


def ran(algorithm, options=None, rounds=4, **more):
    """The state of ``algorithm`` after some rounds on synthetic data, and the engine."""
    given = {"algorithm": {"name": algorithm, **(options or {})}, **SYNTHETIC, **more}
    configuration = resolve(given)
    setup = make(configuration, Alone(), configuration.rounds)
    engine = Engine(setup, setup.hosted_shards(), Clock())
    with torch.no_grad():
        engine.prepare()
        for _ in range(rounds):
            engine.advance()
    return engine.state.algorithm, engine
