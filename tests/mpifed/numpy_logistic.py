"""Logistic regression and its mixtures in plain numpy: (weights, bias) in one row."""

from __future__ import annotations

import itertools

import numpy as np


def logistic_gradient(w, x, y, q):
    """Of sum_i q_i l(w; x_i, y_i)."""
    slope = (1 / (1 + np.exp(-(x @ w[:-1] + w[-1]))) - y) * q
    return np.append(x.T @ slope, slope.sum())


def numpy_losses(theta, x, y):
    z = x @ theta[:-1] + theta[-1]
    return np.logaddexp(0, z) - y * z


def numpy_posterior(theta, pi, x, y):
    """Eq. 8 of FedEM for one client: (samples, M)."""
    joint = np.stack(
        [p * np.exp(-numpy_losses(t, x, y)) for t, p in zip(theta, pi, strict=True)], 1
    )
    return joint / joint.sum(1, keepdims=True)


def likelihood(theta, pi, data):
    """f of eq. 6, times -n."""
    total = 0.0
    for weights, (x, y) in zip(pi, data, strict=True):
        p = sum(w * np.exp(-numpy_losses(t, x, y)) for w, t in zip(weights, theta, strict=True))
        total += np.log(p).sum()
    return total


def random_start(n_clients, components, parameters, seed=0):
    generator = np.random.default_rng(seed)
    theta = generator.normal(size=(components, parameters))
    return theta, generator.dirichlet(np.ones(components), n_clients)


def client_data(clients):
    """The training samples of each client as arrays."""
    train = clients.shards.train
    ends = train.offsets
    return [(train.x[a:b].numpy(), train.y[a:b].numpy()) for a, b in itertools.pairwise(ends)]
