"""What the tests of personal models share: unequal clients, and small runs on synthetic data."""

from __future__ import annotations

import numpy as np
from convex import problem_of

from mpifed.testing import run_rounds

COUNTS = (5, 9, 14, 7)
ROUNDS = 4
LOCAL = {"lr": 0.1, "batch_size": 64}
"""Full-batch steps, so that the order of samples does not matter."""

SYNTHETIC = {
    "clients": 4,
    "data": {"name": "synthetic", "n_test": 5, "dimension": 6},
    "local": {"batch_size": 16, "momentum": 0.9, "epochs": 2},
}


def regression(participation=0.5, d=3):
    """Least squares of clients with unequal n_t: the problem, and the samples of each."""
    draw = np.random.default_rng(3)
    xs = [draw.normal(size=(count, d)) for count in COUNTS]
    ys = [x @ draw.normal(size=d) + 0.1 * draw.normal(size=len(x)) for x in xs]
    return problem_of(xs, ys, participation=participation), list(zip(xs, ys, strict=True))


def gradient(samples, w):
    """Of sum_j (w' x_j - y_j)^2 / (2 n)."""
    x, y = samples
    return x.T @ (x @ w - y) / len(y)


def mean(values, clients, by_samples):
    """The mean of the clients' ``values``, which are by client, as the server takes it."""
    shares = np.array([COUNTS[i] if by_samples else 1 for i in clients], float)
    return sum(s * values[i] for s, i in zip(shares / shares.sum(), clients, strict=True))


def ran(algorithm, options=None, rounds=4, **keys):
    """Rounds of ``algorithm`` on synthetic data."""
    method = {"name": algorithm, **(options or {})}
    return run_rounds(method, **{**SYNTHETIC, **keys}, rounds=rounds)
