"""L2GD: its mean over time on two quadratics, what it sends, and a program of its own."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from convex import Run, two_quadratics
from personal_runs import COUNTS, LOCAL, ROUNDS, gradient, mean, ran, regression, taking_part

from mpifed.algorithms.personal.l2gd import L2GD, runs
from mpifed.federation.clients import Draws

P, PULL, LR = 0.3, 2.0, 0.1
X = [12 / 7, 24 / 7]
"""(a_i c_i + lambda xbar) / (a_i + lambda), xbar = 18 / 7."""


def test_its_mean_over_time_minimises_the_penalised_risk():
    run = Run(L2GD, two_quadratics(), local={"lr": 0.005}, l2gd_p=P, l2gd_lambda=PULL).go(100)
    found = np.mean([run.go().deployed()[:, 0] for _ in range(450)], axis=0)
    assert found == pytest.approx(X, rel=0.01)


def test_runs_of_a_coin_have_the_lengths_of_its_law():
    found = np.array([runs(Draws(0, round), P) for round in range(1, 4001)])
    for lengths, probability in ((found[:, 0], P), (found[:, 1], 1 - P)):
        deviation = math.sqrt(1 - probability) / probability / math.sqrt(len(found))
        assert abs(lengths.mean() - 1 / probability) < 4 * deviation
        assert lengths.min() == 1


def test_a_round_is_one_communication():
    """P numbers up and down for every client and round, however long the runs of the coin."""
    _, engine = ran("l2gd", {"l2gd_p": P}, local={}, rounds=4)
    ledger, size = engine.setup.exchange.ledger, engine.setup.model.n_parameters
    assert ledger.up_floats == 4 * 4 * size
    assert ledger.up_bits == ledger.down_bits == 32 * 4 * 4 * size
    assert len({runs(Draws(0, round), P) for round in range(1, 5)}) > 1


@pytest.mark.parametrize("gradients", ["full", "minibatch"])
def test_four_rounds_are_those_of_a_plain_program_coin_by_coin(gradients):
    data, samples = regression()
    options = {"l2gd_p": P, "l2gd_lambda": 0.5, "l2gd_gradients": gradients}
    run = Run(L2GD, data, local=LOCAL, **options)
    x = dict.fromkeys(range(len(COUNTS)), run.x.copy())
    for round in range(1, ROUNDS + 1):
        zeros, ones = runs(Draws(0, round), P)
        here = taking_part(data, round)
        for coin in [0] * zeros + [1] * ones:
            xbar = mean(x, here, by_samples=False)
            for i in here:
                if coin:
                    x[i] = x[i] - LR * 0.5 / P * (x[i] - xbar)
                else:
                    x[i] = x[i] - LR / (1 - P) * gradient(samples[i], x[i])
    run.go(ROUNDS)
    assert run.deployed() == pytest.approx(np.stack(list(x.values())), rel=1e-10)


def test_without_a_penalty_clients_are_alone():
    found, _ = ran("l2gd", {"l2gd_lambda": 0.0, "l2gd_gradients": "minibatch"}, rounds=1)
    zeros, _ = runs(Draws(0, 1), 0.1)
    local = {"batch_size": 16, "momentum": 0.9, "steps": zeros, "lr": 0.1 / 0.9}
    expected, _ = ran("local", local=local, rounds=1)
    assert torch.allclose(found.models, expected.models, atol=1e-6)


def test_an_unseen_client_descends_on_its_risk_near_the_mean():
    data, samples = regression()
    run = Run(L2GD, data, local=LOCAL, l2gd_p=P, l2gd_lambda=0.5).go(2)
    found = run.method.adapt(run.state, run.clients, run.server, Draws(0, 2))
    for i, of_client in enumerate(samples):
        x = run.x.copy()
        for _ in range(3):
            x = x - LR / (1 - P) * (gradient(of_client, x) + 0.5 * (x - run.x))
        assert found.parameters[i, 0].numpy() == pytest.approx(x, rel=1e-10)
