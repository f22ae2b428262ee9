from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from old_convex import Run, clients_of, logistic

from mpifed.algorithms.global_model.maml import Fomaml, Maml, Reptile, query, support
from mpifed.data.base import Split
from mpifed.federation.clients import Clients, Draws
from mpifed.local.linear_objective import objective_of
from mpifed.local.objective import Regulariser
from mpifed.models.linear import Linear, linear
from mpifed.models.losses import CROSS_ENTROPY, MULTI_LABEL, SQUARED
from mpifed.models.mlp import Mlp

TWO = [[[1.0]], [[3.0]]], [[0.0], [4.0]]


def test_reptile_normalised_is_reptile_with_another_outer_step():
    one = Run(Reptile, logistic(), inner_step=0.3, outer_step=0.6, inner_steps=4).go(5)
    two = Run(
        Reptile, logistic(), inner_step=0.3, outer_step=0.72, inner_steps=4, reptile_normalised=True
    ).go(5)
    assert one.x == pytest.approx(two.x, abs=1e-14)


@pytest.mark.parametrize("fraction", [0.6, 1.0])
def test_the_direction_of_maml_is_the_derivative_of_its_objective(fraction):
    run = Run(Maml, logistic(), support_fraction=fraction, inner_step=0.7, inner_steps=3, l2=0.2)
    clients = run.clients

    def value(w):
        rows = torch.from_numpy(np.tile(w, (len(clients), 1)))
        adapted = run.method.path(rows, run.method.support(clients))[-1]
        return run.method.query(clients).losses(adapted).numpy()

    # From zero too, where a logistic loss as it is computed has a kink.
    for x in (np.zeros(5), np.random.default_rng(0).normal(size=5)):
        rows = torch.from_numpy(np.tile(x, (len(clients), 1)))
        found = run.method.direction(rows, clients).numpy()
        for j, step in enumerate(1e-5 * np.eye(5)):
            numeric = (value(x + step) - value(x - step)) / 2e-5
            assert found[:, j] == pytest.approx(numeric, abs=1e-8)


MODELS = [
    (Linear(4, 1), 2),
    (Linear(4, 3), 3),
    (Linear(4, 3, True, MULTI_LABEL), None),
    (Linear(4, 2, False, SQUARED), None),
    (Mlp((4, 5, 3), "tanh", CROSS_ENTROPY), 3),
]


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
    for sparse in (False, True) if isinstance(model, Linear) else (None,):
        risk = objective_of(model, clients, Regulariser("l2", 0.3), sparse=sparse)
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
    for sparse in (False, True) if isinstance(model, Linear) else (None,):
        together = objective_of(model, clients, Regulariser(), sparse=sparse).hessian_products(w, v)
        for i in range(5):
            alone = Clients(clients.federation, clients.shards, np.array([i]))
            risk = objective_of(model, alone, Regulariser(), sparse=sparse)
            assert torch.equal(risk.hessian_products(w[i : i + 1], v[i : i + 1])[0], together[i])


@given(st.lists(st.integers(0, 30), min_size=1, max_size=6), st.floats(0.01, 1))
def test_support_and_query_part_every_shard(counts, fraction):
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    values = torch.arange(int(offsets[-1]), dtype=torch.float64)
    split = Split(values[:, None], values, offsets)
    one, two = support(split, fraction), query(split, fraction)
    for i, count in enumerate(counts):
        own = values[offsets[i] : offsets[i + 1]].tolist()
        a = one.y[one.offsets[i] : one.offsets[i + 1]].tolist()
        b = two.y[two.offsets[i] : two.offsets[i + 1]].tolist()
        if fraction == 1 or count < 2:
            assert a == b == own
        else:
            assert a + b == own
            assert a
            assert b
            assert abs(len(a) - fraction * count) <= 1


def test_ten_samples_are_parted_at_eight():
    x = torch.arange(10.0)
    split = Split(x[:, None], x, np.array([0, 10]))
    assert support(split, 0.8).counts.tolist() == [8]
    assert query(split, 0.8).y.tolist() == [8, 9]


@pytest.mark.parametrize("kind", [Fomaml, Maml, Reptile])
def test_clients_are_served_by_what_k_steps_on_all_their_samples_make(kind):
    run = Run(kind, logistic(), inner_step=0.5, inner_steps=2, l2=0.1).go(3)
    served = run.method.deploy(run.state, run.clients, Draws(0, 3)).parameters[:, 0]
    again = run.method.adapt(run.state, run.clients, run.server, Draws(0, 3)).parameters[:, 0]
    risk = objective_of(run.model, run.clients, Regulariser("l2", 0.1))
    x = torch.from_numpy(run.x)[None].repeat(6, 1)
    for _ in range(2):
        x = x - 0.5 * risk.gradients(x)
    assert torch.equal(served, x)
    assert torch.equal(again, x)


def test_a_network_begins_at_random_and_a_linear_model_at_zero():
    clients, description = logistic()
    assert not Run(Fomaml, (clients, description)).x.any()
    net = Run(Fomaml, (clients, description), model=Mlp((5, 3, 1)))
    assert net.x.any()
    assert linear(description).n_parameters == 6


@pytest.mark.parametrize("kind", [Fomaml, Maml, Reptile])
@pytest.mark.parametrize(("compression", "each"), [(None, 5), (("rand_k", {"k": 2}), 2)])
def test_the_numbers_sent_up_are_counted_as_those_of_flix(kind, compression, each):
    run = Run(kind, logistic(n=6, d=5), compression).go(3)
    assert run.measured() == {"up_floats": 6 * each * 3}
