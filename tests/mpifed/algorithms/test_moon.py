"""MOON: rounds of a network of one tanh layer in numpy, with slopes by differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import Run
from numpy_mlp import HIDDEN, INPUTS, gradient, present, regressions

from mpifed.errors import InputError
from mpifed.model import Model, contrastive, representation

WHOLE = {"lr": 0.3, "batch_size": 64}
MU, TAU = 3.0, 0.4


def represented(row, x):
    w, b, _ = np.split(row, np.cumsum([INPUTS * HIDDEN, HIDDEN]))
    return np.tanh(x @ w.reshape(HIDDEN, INPUTS).T + b)


def cosine(a, b):
    return (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)


def contrast(row, near, away, x):
    """Eq. 3, the mean over samples."""
    z = represented(row, x)
    one, other = (np.exp(cosine(z, represented(o, x)) / TAU) for o in (near, away))
    return -np.log(one / (one + other)).mean()


def slope(row, near, away, x, h=1e-5):
    """Of ``contrast``, by central differences of fourth order."""
    found = np.zeros_like(row)
    for k in range(len(row)):
        unit = h * (np.arange(len(row)) == k)
        at = [contrast(row + c * unit, near, away, x) for c in (1, -1, 2, -2)]
        found[k] = (8 * (at[0] - at[1]) - (at[2] - at[3])) / (12 * h)
    return found


def test_four_rounds_written_out():
    data, samples = regressions()
    options = {"moon_mu": MU, "moon_tau": TAU}
    run = Run("moon", data, local={**WHOLE, "epochs": 3}, **options)
    plain = Run("fedavg", data, local={**WHOLE, "epochs": 3})
    w = run.x.copy()
    previous = np.tile(w, (len(samples), 1))
    for _ in range(4):
        who, weights = present(run)
        sent = []
        for i in who:
            (x, y), row = samples[i], w.copy()
            for _ in range(3):
                row = row - 0.3 * (gradient(row, x, y) + MU * slope(row, w, previous[i], x))
            previous[i] = row
            sent.append(row)
        if len(who):
            w = weights @ np.array(sent)
        run.go()
        assert run.x == pytest.approx(w, abs=1e-8)
        assert run.state.previous[:, 0].numpy() == pytest.approx(previous, abs=1e-8)
    assert np.abs(plain.go(4).x - w).max() > 1e-3


def test_without_the_contrast_it_is_fedavg():
    data, _ = regressions()
    run = Run("moon", data, local=WHOLE, moon_mu=0.0).go(3)
    plain = Run("fedavg", data, local=WHOLE).go(3)
    assert run.x == pytest.approx(plain.x, abs=1e-14)


def test_gradients_of_rows_are_those_of_single_steps():
    data, samples = regressions()
    model = Run("local", data).model
    both, draw = contrastive(model, MU, TAU), np.random.default_rng(1)
    rows = torch.from_numpy(draw.normal(size=(2, both.n_parameters)))
    x, y = (torch.from_numpy(a) for a in samples[1])
    weights = torch.full((2, len(x)), 1 / len(x), dtype=torch.float64)
    found = both.gradient(rows, x.expand(2, -1, -1), y[:, None].expand(2, -1, -1), weights)
    for row, made in zip(rows.numpy(), found.numpy(), strict=True):
        own, near, away = row.reshape(3, -1)
        wanted = gradient(own, *samples[1]) + MU * slope(own, near, away, samples[1][0])
        assert made[: len(own)] == pytest.approx(wanted, abs=1e-8)
        assert (made[len(own) :] == 0).all()
    assert torch.equal(both.shared_logits(rows, x), both.logits(rows, x.expand(2, -1, -1)))


class Formula(Model):
    """A model that is written as a formula alone."""

    n_parameters = 3
    init = logits = shared_logits = gradient = None


def test_models_without_a_last_layer_are_refused():
    with pytest.raises(InputError, match=r"Formula.*torch module"):
        contrastive(Formula(), MU, TAU)
    with pytest.raises(InputError, match=r"Formula.*last layer"):
        representation(Formula(), torch.zeros(1, 3), torch.zeros(1, 3))
