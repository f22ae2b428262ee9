from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from convex import Run, clients_of, logistic, problem_of
from numpy_flix import risk_of

from mpifed.dataset import alike
from mpifed.method import Clients
from mpifed.model import (
    Linear,
    Objectives,
    Regulariser,
    SparseObjective,
    StackedObjective,
)
from mpifed.testing import make_model


def test_reptile_normalised_is_reptile_with_another_outer_step():
    one = Run("reptile", logistic(), inner_step=0.3, outer_step=0.6, inner_steps=4).go(5)
    two = Run(
        "reptile",
        logistic(),
        inner_step=0.3,
        outer_step=0.72,
        inner_steps=4,
        reptile_normalised=True,
    ).go(5)
    assert one.x == pytest.approx(two.x, abs=1e-14)


@pytest.mark.parametrize("fraction", [0.6, 0.8, 1.0])
def test_the_direction_of_maml_is_the_derivative_of_its_objective(fraction):
    """The first of a client's samples are its support, at least one; others, if any, its query."""
    draw = np.random.default_rng(0)
    sizes, outer = (10, 3, 7, 2), 0.5
    xs = [draw.normal(size=(m, 5)) for m in sizes]
    ys = [draw.integers(2, size=m) for m in sizes]
    options = {"support_fraction": fraction, "inner_step": 0.7, "inner_steps": 3, "l2": 0.2}
    problem = problem_of(xs, ys, "classification")
    run = Run("maml", problem, outer_step=outer, **options)

    def value(w):
        total = 0
        for x, y in problem.samples:
            n = len(y) if fraction == 1 else max(1, int(fraction * len(y) + 1e-9))
            adapted = w
            for _ in range(3):
                adapted = adapted - 0.7 * risk_of(x[:n], y[:n], adapted, 0.2)[1]
            rest = slice(n, None) if n < len(y) else slice(None)
            total += risk_of(x[rest], y[rest], adapted, 0.2)[0]
        return total / len(sizes)

    # From zero too, where a logistic loss as it is computed has a kink.
    for x in (np.zeros(5), np.random.default_rng(0).normal(size=5)):
        moved = run.start_from(model=x[None]).advance().state.model[0].numpy()
        for j, step in enumerate(1e-5 * np.eye(5)):
            numeric = (value(x + step) - value(x - step)) / 2e-5
            assert (x - moved)[j] / outer == pytest.approx(numeric, abs=1e-8)


def model_of(name, outputs, task="classification", **options):
    return make_model({"name": name, **options}, alike("test", (4,), outputs, 1, (9, 0, 9), task))


MODELS = [
    (model_of("linear", 2), 2),
    (model_of("linear", 3), 3),
    (model_of("linear", 3, "multi_label"), None),
    (model_of("linear", 2, "regression", bias=False, loss="squared"), None),
    (model_of("mlp", 3, hidden=[5], activation="tanh"), 3),
]


def ways(model, clients, regulariser):
    """A client's risk, by each way that the model has."""
    yield Objectives(model, regulariser)(clients)
    if isinstance(model, Linear):
        for kind in (StackedObjective, SparseObjective):
            yield kind(model, clients.rows, regulariser, clients.shards.train)


def retargeted(clients, model, draw, dtype):
    """The same inputs with random zeros and ones as targets of every output."""
    train = clients.shards.train
    y = draw.integers(2, size=(len(train.x), model.n_outputs))
    split = replace(train, x=train.x.to(dtype), y=torch.from_numpy(y).to(dtype))
    return replace(clients, shards=replace(clients.shards, train=split))


@pytest.mark.parametrize(("model", "classes"), MODELS)
def test_hessian_products_are_differences_of_gradients(model, classes):
    draw = np.random.default_rng(1)
    clients, _ = clients_of(
        [draw.normal(size=(m, 4)) for m in (7, 1, 40)],
        [draw.integers(classes or 2, size=m) for m in (7, 1, 40)],
        "classification",
    )
    if classes is None:
        clients = retargeted(clients, model, draw, torch.float64)
    w, v = torch.from_numpy(draw.normal(size=(2, 3, model.n_parameters)))
    for risk in ways(model, clients, Regulariser("l2", 0.3)):
        numeric = (risk.gradients(w + 1e-5 * v) - risk.gradients(w - 1e-5 * v)) / 2e-5
        assert torch.allclose(risk.hessian_products(w, v), numeric, atol=1e-7)


@pytest.mark.parametrize(("model", "classes"), MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_client_s_hessian_product_does_not_depend_on_its_block(model, classes, dtype):
    draw = np.random.default_rng(2)
    sizes = (33, 33, 64, 1, 5)
    clients, _ = clients_of(
        [draw.normal(size=(m, 4)) for m in sizes],
        [draw.integers(classes or 2, size=m) for m in sizes],
        "classification",
    )
    if classes is None:
        clients = retargeted(clients, model, draw, dtype)
    else:
        train = clients.shards.train
        shards = replace(clients.shards, train=replace(train, x=train.x.to(dtype)))
        clients = replace(clients, shards=shards)
    w, v = torch.from_numpy(draw.normal(size=(2, 5, model.n_parameters))).to(dtype)
    everyone = [risk.hessian_products(w, v) for risk in ways(model, clients, Regulariser())]
    for i in range(5):
        alone = Clients(clients.federation, clients.shards, np.array([i]))
        for risk, together in zip(ways(model, alone, Regulariser()), everyone, strict=True):
            assert torch.equal(risk.hessian_products(w[i : i + 1], v[i : i + 1])[0], together[i])


@pytest.mark.parametrize("kind", ["fomaml", "maml", "reptile"])
def test_clients_are_served_by_what_k_steps_on_all_their_samples_make(kind):
    run = Run(kind, logistic(), inner_step=0.5, inner_steps=2, l2=0.1).go(3)
    risk = Objectives(run.model, Regulariser("l2", 0.1))(run.clients)
    x = torch.from_numpy(run.x)[None].repeat(6, 1)
    for _ in range(2):
        x = x - 0.5 * risk.gradients(x)
    assert np.array_equal(run.models(), x) and np.array_equal(run.adapted(), x)


def test_a_network_begins_at_random_and_a_linear_model_at_zero():
    assert not Run("fomaml", logistic()).x.any()
    assert Run("fomaml", logistic(), model={"name": "mlp", "hidden": [3]}).x.any()


@pytest.mark.parametrize("kind", ["fomaml", "maml", "reptile"])
@pytest.mark.parametrize(("compression", "each"), [(None, 5), (("rand_k", {"k": 2}), 2)])
def test_the_numbers_sent_up_are_counted_as_those_of_flix(kind, compression, each):
    run = Run(kind, logistic(n=6, d=5), compression).go(3)
    assert run.measured() == {"up_floats": 6 * each * 3}
