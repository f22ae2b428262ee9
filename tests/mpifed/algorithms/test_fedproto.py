"""FedProto: rounds of a network of one tanh layer in numpy, with slopes by differences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import Run, problem_of
from numpy_mlp import HIDDEN, INPUTS, SIZES

from mpifed.errors import InputError
from mpifed.model import last_sizes, module_model

WHOLE = {"lr": 0.3, "batch_size": 64}
STRENGTH = 0.8
NETWORK = {"name": "mlp", "hidden": [HIDDEN], "activation": "tanh"}


def classes(participation=0.5):
    """Two labels; the first client has label 1 alone."""
    draw = np.random.default_rng(2)
    xs = [draw.normal(size=(n, INPUTS)) for n in SIZES]
    ys = [(x[:, 0] + 0.3 * draw.normal(size=len(x)) > 0).astype(int) for x in xs]
    ys[0][:] = 1
    problem = problem_of(xs, ys, "classification", participation, NETWORK)
    return problem, list(zip(xs, ys, strict=True))


def represented(row, x):
    w, b, *_ = np.split(row, np.cumsum([INPUTS * HIDDEN, HIDDEN]))
    return np.tanh(x @ w.reshape(HIDDEN, INPUTS).T + b)


def loss(row, x, y, prototypes):
    z = represented(row, x)
    margin = (2 * y - 1) * (z @ row[-HIDDEN - 1 : -1] + row[-1])
    pulls = [
        ((a - prototypes[j]) ** 2).mean() for a, j in zip(z, y, strict=True) if j in prototypes
    ]
    return np.log1p(np.exp(-margin)).mean() + STRENGTH * sum(pulls) / len(y)


def slope(row, *about, h=1e-5):
    """Of ``loss``, by central differences of fourth order."""
    found = np.zeros_like(row)
    for k in range(len(row)):
        unit = h * (np.arange(len(row)) == k)
        at = [loss(row + c * unit, *about) for c in (1, -1, 2, -2)]
        found[k] = (8 * (at[0] - at[1]) - (at[2] - at[3])) / (12 * h)
    return found


def test_rounds_written_out():
    data, samples = classes()
    local = {**WHOLE, "epochs": 3}
    run = Run("fedproto", data, local=local, fedproto_lambda=STRENGTH)
    own, prototypes = run.state.models[:, 0].numpy().copy(), {}
    for _ in range(5):
        who = run.participants
        for i in who:
            for _ in range(3):
                own[i] -= 0.3 * slope(own[i], *samples[i], prototypes)
        shown = {}
        for i in who:
            x, y = samples[i]
            for z, j in zip(represented(own[i], x), y, strict=True):
                shown.setdefault(j, []).append(z)
        prototypes |= {j: np.mean(z, 0) for j, z in shown.items()}
        run.go()
        assert run.state.models[:, 0].numpy() == pytest.approx(own, abs=1e-8)
        for j, known in prototypes.items():
            assert run.state.prototypes[j].numpy() == pytest.approx([*known, 1], abs=1e-8)
    assert set(prototypes) == {0, 1}
    deployed = run.algorithm.deploy(run.state, run.clients, None)
    for i, (x, _) in enumerate(samples):
        z = represented(own[i], x)[:, None] - np.array([prototypes[0], prototypes[1]])
        wanted = np.square(z).sum(2) @ [1, -1]
        found = deployed.local_predictor(i)(torch.from_numpy(x))
        assert found[:, 0].numpy() == pytest.approx(wanted, abs=1e-7)
    assert (deployed.mixture.numpy() == [0, 1]).all()


def test_a_label_that_nobody_has_shown_is_not_predicted():
    data, samples = classes()
    run, x = Run("fedproto", data, local=WHOLE), torch.from_numpy(samples[1][0])

    def outputs():
        return run.algorithm.deploy(run.state, run.clients, None).local_predictor(1)(x)

    assert (outputs() == 0).all()
    run.start_from(prototypes=np.eye(2, HIDDEN + 1, HIDDEN - 1))
    assert (outputs() > 1e20).all()


def test_without_the_pull_it_is_training_alone():
    data, _ = classes()
    how = {"fedproto_lambda": 0.0, "deployed": "model"}
    run = Run("fedproto", data, local=WHOLE, **how).go(3)
    alone = Run("local", data, local=WHOLE).go(3)
    assert run.models() == pytest.approx(alone.models(), abs=1e-14)
    assert run.algorithm.payload() == 2 * (HIDDEN + 1)


def test_a_last_layer_that_is_not_linear_is_refused():
    with pytest.raises(InputError, match=r"Bilinear.*Linear"):
        last_sizes(module_model(Twice, (3,), (2,)))


class Twice(torch.nn.Module):
    """Squares of its inputs, in a layer of its own kind."""

    def __init__(self):
        super().__init__()
        self.last = torch.nn.Bilinear(3, 3, 2)

    def forward(self, x):
        return self.last(x, x)
