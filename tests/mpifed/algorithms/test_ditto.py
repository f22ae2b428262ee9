"""Ditto: where it ends on two quadratics, what it is without its pull, and a program of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import Run, two_quadratics
from personal_runs import (
    COUNTS,
    LOCAL,
    ROUNDS,
    gradient,
    mean,
    ran,
    regression,
    taking_part,
)

from mpifed.algorithms.personal.ditto import Ditto
from mpifed.federation.clients import Draws

PULL = 2.0


def test_personal_models_end_between_their_own_minimum_and_the_global_model():
    """v_k = (a_k c_k + lambda w) / (a_k + lambda), where w = 3 minimises the mean."""
    run = Run(Ditto, two_quadratics(), local={"lr": 0.1}, ditto_lambda=PULL).go(200)
    assert run.x == pytest.approx(3.0, rel=1e-9)
    assert run.deployed()[:, 0] == pytest.approx([2.0, 3.6], rel=1e-9)


@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_without_a_pull_it_is_local_beside_fedavg_bit_for_bit(exchange):
    found, _ = ran("ditto", {"ditto_lambda": 0.0}, exchange=exchange, participation=0.5)
    alone, _ = ran("local", participation=0.5)
    averaged, _ = ran("fedavg", exchange=exchange, participation=0.5)
    assert torch.equal(found.personal, alone.models)
    assert torch.equal(found.model, averaged.model)


def test_the_pull_leaves_the_global_model_to_fedavg_and_moves_the_personal_ones():
    found, _ = ran("ditto", {"ditto_lambda": 0.5})
    averaged, _ = ran("fedavg")
    alone, _ = ran("local")
    assert torch.equal(found.model, averaged.model)
    assert not torch.allclose(found.personal, alone.models)


def test_four_rounds_are_those_of_a_plain_program():
    data, samples = regression()
    run = Run(Ditto, data, local={**LOCAL, "epochs": 2}, ditto_lambda=PULL, personal_epochs=3)
    w = run.x.copy()
    v = {i: w.copy() for i in range(len(COUNTS))}
    for round in range(1, ROUNDS + 1):
        here, trained = taking_part(data, round), {}
        for i in here:
            for _ in range(3):
                v[i] = v[i] - 0.1 * (gradient(samples[i], v[i]) + PULL * (v[i] - w))
            trained[i] = w
            for _ in range(2):
                trained[i] = trained[i] - 0.1 * gradient(samples[i], trained[i])
        w = mean(trained, here, by_samples=True)
    run.go(ROUNDS)
    assert run.x == pytest.approx(w, rel=1e-12)
    assert run.deployed() == pytest.approx(np.stack([v[i] for i in v]), rel=1e-12)


def test_an_unseen_client_trains_a_personal_model_from_the_global_one():
    data, samples = regression()
    run = Run(Ditto, data, local=LOCAL, ditto_lambda=PULL, personal_epochs=2).go(2)
    found = run.method.adapt(run.state, run.clients, run.server, Draws(0, 2))
    for i, of_client in enumerate(samples):
        v = run.x.copy()
        for _ in range(2):
            v = v - 0.1 * (gradient(of_client, v) + PULL * (v - run.x))
        assert found.parameters[i, 0].numpy() == pytest.approx(v, rel=1e-12)
