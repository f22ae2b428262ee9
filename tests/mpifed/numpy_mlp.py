"""A network of one tanh layer in plain numpy, float64: an independent check of federated rounds."""

from __future__ import annotations

import numpy as np
from convex import problem_of

SIZES = (5, 9, 4, 7)
INPUTS, HIDDEN = 2, 3
HEAD = np.arange(INPUTS * HIDDEN + HIDDEN, (INPUTS + 2) * HIDDEN + 1)
BODY = np.arange(INPUTS * HIDDEN + HIDDEN)
MODEL = {"name": "mlp", "hidden": [HIDDEN], "activation": "tanh", "loss": "half_squared"}


def regressions(seed=0, participation=0.5):
    """The network on clients with unequal numbers of samples, and these."""
    draw = np.random.default_rng(seed)
    xs = [draw.normal(size=(n, INPUTS)) for n in SIZES]
    ys = [np.sin(x @ draw.normal(size=INPUTS)) for x in xs]
    problem = problem_of(xs, ys, participation=participation, model=MODEL)
    return problem, list(zip(xs, ys, strict=True))


def gradient(row, x, y):
    """The gradient of the mean of (h(x) - y)^2 / 2 over the samples, in one row (P,)."""
    cut = np.cumsum([INPUTS * HIDDEN, HIDDEN, HIDDEN])
    w, b, v, c = np.split(row, cut)
    w = w.reshape(HIDDEN, INPUTS)
    h = np.tanh(x @ w.T + b)
    slope = (h @ v + c - y) / len(x)
    inner = np.outer(slope, v) * (1 - h**2)
    return np.concatenate([(inner.T @ x).ravel(), inner.sum(0), slope @ h, [slope.sum()]])


def descended(row, x, y, lr, steps, part=slice(None)):
    """The row after steps of all samples that move its numbers in ``part``."""
    row = row.copy()
    for _ in range(steps):
        row[part] -= lr * gradient(row, x, y)[part]
    return row


def present(run, sizes=SIZES):
    """The participants of the next round and their weights n_t over the sum."""
    who = run.participants
    counts = np.array(sizes)[who]
    return who, counts / max(counts.sum(), 1)
