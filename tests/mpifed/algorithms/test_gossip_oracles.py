"""Methods by gossip against a program in numpy: what is shared is mixed by W, the rest stays.

Four clients on a path, logistic regression, full-batch steps, three rounds. In every method the
shared rows X of all clients become W X after local steps, where FedAvg's server would average them.
"""

from __future__ import annotations

import numpy as np
import pytest
from personal_runs import ran

DEGREES = np.array([1, 2, 2, 1])
RATE, EPOCHS, ROUNDS, D = 0.4, 2, 3, 3
SETTINGS = {
    "dtype": "float64",
    "exchange": {"name": "gossip", "topology": "path", "weights": "metropolis_hastings"},
    "data": {"name": "synthetic", "n_test": 5, "dimension": D, "variant": "paper"},
    "local": {"lr": RATE, "epochs": EPOCHS, "batch_size": 4096, "momentum": 0.0},
}


def mixing():
    """Metropolis-Hastings weights of the path: 1 / (1 + the larger degree) between neighbours."""
    w = np.zeros((4, 4))
    for i in range(3):
        w[i, i + 1] = w[i + 1, i] = 1 / (1 + max(DEGREES[i], DEGREES[i + 1]))
    return w + np.diag(1 - w.sum(1))


def slopes(samples, row, shift=0.0):
    """The gradient of the mean logistic loss at (weights, bias), with ``shift`` on the logit."""
    x, y = samples
    away = 1 / (1 + np.exp(-(x @ row[:-1] + row[-1] + shift))) - y
    return np.append(x.T @ away, away.sum()) / len(y)


def descend(samples, row, rate, only=slice(None), steps=EPOCHS, pull=0.0, anchor=0.0):
    """Steps along gradients in some numbers, with a pull to ``anchor``."""
    row = row.copy()
    for _ in range(steps):
        row[only] -= rate * (slopes(samples, row) + pull * (row - anchor))[only]
    return row


WEIGHTS, BIAS = slice(0, D), slice(D, D + 1)


def fedavg(samples, rate, own, shared, round):
    return descend(samples, shared, rate), own


def fedprox(samples, rate, own, shared, round):
    return descend(samples, shared, rate, pull=0.7, anchor=shared), own


def fedper(samples, rate, own, shared, round):
    row = descend(samples, np.append(shared, own), rate)
    return row[WEIGHTS], row[BIAS]


def fedrep(samples, rate, own, shared, round):
    row = descend(samples, np.append(shared, own), rate, BIAS, steps=3)
    row = descend(samples, row, rate, WEIGHTS)
    return row[WEIGHTS], row[BIAS]


def fedbabu(samples, rate, own, shared, round):
    return descend(samples, np.append(shared, own), rate, WEIGHTS)[WEIGHTS], own


def fedrod(samples, rate, own, shared, round):
    """The generic model on the loss with log n(1) / n(0) added, phi at the sum of both heads."""
    generic, phi, y = shared.copy(), own.copy(), samples[1]
    prior = np.log(y.sum() / (1 - y).sum())
    for _ in range(EPOCHS):
        moves = slopes(samples, generic, prior), slopes(samples, generic + phi)
        generic, phi = generic - rate * moves[0], phi - rate * moves[1]
    return generic, phi


def fedala(samples, rate, own, shared, round):
    """The bias lies between the client's own and the shared one; three epochs of w, then one."""
    (last, w), row = own, shared.copy()
    if round > 1:
        gap = shared[D] - last[D]
        for _ in range(3 if round == 2 else 1):
            row[D] = last[D] + w * gap
            w = np.clip(w - slopes(samples, row)[D] * gap, 0, 1)
        row[D] = last[D] + w * gap
    trained = descend(samples, row, rate)
    return trained, (trained, w)


def ditto(samples, rate, own, shared, round):
    return descend(samples, shared, rate), descend(samples, own, RATE, pull=0.6, anchor=shared)


def apfl(samples, rate, own, shared, round):
    w, v = shared.copy(), own.copy()
    for _ in range(EPOCHS):
        of_mixture = slopes(samples, 0.3 * v + 0.7 * w)
        w, v = w - RATE * slopes(samples, w), v - RATE * 0.3 * of_mixture
    return w, v


def pfedme(samples, rate, own, shared, round):
    """Per minibatch three steps of theta from where it ended before, then one of w to theta."""
    w, theta = shared.copy(), shared.copy()
    for _ in range(EPOCHS):
        for _ in range(3):
            theta = theta - RATE * (slopes(samples, theta) + 2 * (theta - w))
        w = w - 0.1 * 2 * (w - theta)
    return w, theta


def pfedme_to_average(samples, rate, own, shared, round):
    theta = descend(samples, own, RATE, pull=2.0, anchor=shared)
    return theta, theta


HEAD = {"head": ["bias"]}
METHODS = {
    "fedavg": (fedavg, {}),
    "fedavg_ft": (fedavg, {}),
    "knn_per": (fedavg, {}),
    "fedprox": (fedprox, {"mu": 0.7}),
    "fedper": (fedper, HEAD),
    "fedrep": (fedrep, {**HEAD, "head_epochs": 3, "head_init": "per_client"}),
    "fedbabu": (fedbabu, HEAD),
    "fedrod": (fedrod, {}),
    "fedala": (fedala, {**HEAD, "ala_share": 1.0, "first_epochs": 3}),
    "ditto": (ditto, {"ditto_lambda": 0.6}),
    "apfl": (apfl, {"apfl_alpha": 0.3}),
    "pfedme": (pfedme, {"pfedme_lambda": 2.0, "pfedme_eta": 0.1, "inner_steps": 3}),
    "pfedme in FedEM": (
        pfedme_to_average,
        {"pfedme_lambda": 2.0, "pfedme_variant": "prox_to_average"},
    ),
}
SHARES = {"fedper": "body", "fedrep": "body", "fedbabu": "body"}
OWN = {"fedper": "heads", "fedrep": "heads", "fedbabu": "heads", "fedrod": "heads"}
OWN |= dict.fromkeys(("ditto", "apfl", "pfedme", "pfedme in FedEM"), "personal")


@pytest.mark.parametrize("name", METHODS)
def test_three_rounds_by_gossip_are_those_of_a_program_in_numpy(name):
    local, options = METHODS[name]
    run = ran(name.partition(" ")[0], options, 0, **SETTINGS)
    train = run.clients.shards.train
    parts = [train.rows_of(t) for t in range(4)]
    samples = [(train.x[part].numpy(), train.y[part].numpy()) for part in parts]
    sizes = np.array([len(y) for _, y in samples])
    assert len(set(sizes)) > 1
    rates = RATE * sizes * 4 / sizes.sum()

    def rows(field):
        return getattr(run.state, field).numpy()[:, 0].copy()

    shared = rows(SHARES.get(name, "model"))
    own = list(rows(OWN[name])) if name in OWN else [None] * 4
    if name == "fedala":
        own = [(row, 1.0) for row in shared]
    for round in range(1, ROUNDS + 1):
        moved = [local(samples[t], rates[t], own[t], shared[t], round) for t in range(4)]
        own = [each[1] for each in moved]
        shared = mixing() @ np.stack([each[0] for each in moved])
        run.advance()
        assert rows(SHARES.get(name, "model")) == pytest.approx(shared, rel=1e-9, abs=1e-12)
        if name in OWN:
            assert rows(OWN[name]) == pytest.approx(np.stack(own), rel=1e-9, abs=1e-12)
    assert np.ptp(shared, axis=0).max() > 1e-3
