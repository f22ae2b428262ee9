"""L2GD: its mean over time on two quadratics, what it sends, and a program of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import Run, two_quadratics
from personal_runs import COUNTS, LOCAL, ROUNDS, gradient, mean, ran, regression

from mpifed.dataset import bits_at
from mpifed.method import Draws

P, PULL, LR = 0.3, 2.0, 0.1
X = [12 / 7, 24 / 7]
"""(a_i c_i + lambda xbar) / (a_i + lambda), xbar = 18 / 7."""


def runs(round, p):
    """How many zeros, and how many ones behind them, the coin shows in a round."""
    stream = Draws(0, round).stream("coin")
    return int(stream.geometric(p)), int(stream.geometric(1 - p))


def test_its_mean_over_time_minimises_the_penalised_risk():
    run = Run("l2gd", two_quadratics(), local={"lr": 0.005}, l2gd_p=P, l2gd_lambda=PULL).go(100)
    found = np.mean([run.go().models()[:, 0] for _ in range(450)], axis=0)
    assert found == pytest.approx(X, rel=0.01)


def test_a_round_is_one_communication():
    """P numbers up and down for every client and round, however long the runs of the coin."""
    run = ran("l2gd", {"l2gd_p": P}, local={}, rounds=4)
    ledger, size = run.exchange.ledger, run.model.n_parameters
    assert ledger.up_floats == 4 * 4 * size
    assert ledger.up_bits == ledger.down_bits == 32 * 4 * 4 * size
    assert len({runs(round, P) for round in range(1, 5)}) > 1


@pytest.mark.parametrize("gradients", ["full", "minibatch"])
def test_four_rounds_are_those_of_a_plain_program_coin_by_coin(gradients):
    data, samples = regression()
    options = {"l2gd_p": P, "l2gd_lambda": 0.5, "l2gd_gradients": gradients}
    run = Run("l2gd", data, local=LOCAL, **options)
    x = dict.fromkeys(range(len(COUNTS)), run.x.copy())
    for round in range(1, ROUNDS + 1):
        zeros, ones = runs(round, P)
        here = run.participants
        for coin in [0] * zeros + [1] * ones:
            xbar = mean(x, here, by_samples=False)
            for i in here:
                if coin:
                    x[i] = x[i] - LR * 0.5 / P * (x[i] - xbar)
                else:
                    x[i] = x[i] - LR / (1 - P) * gradient(samples[i], x[i])
        run.go()
    assert run.models() == pytest.approx(np.stack(list(x.values())), rel=1e-10)


def test_without_a_penalty_clients_are_alone():
    found = ran("l2gd", {"l2gd_lambda": 0.0, "l2gd_gradients": "minibatch"}, rounds=1).state
    zeros, _ = runs(1, 0.1)
    local = {"batch_size": 16, "momentum": 0.9, "steps": zeros, "lr": 0.1 / 0.9}
    expected = ran("local", local=local, rounds=1).state
    assert torch.allclose(found.models, expected.models, atol=1e-6)


def test_an_unseen_client_descends_on_its_risk_near_the_mean():
    data, samples = regression()
    run = Run("l2gd", data, local=LOCAL, l2gd_p=P, l2gd_lambda=0.5).go(2)
    found = run.adapted()
    for i, of_client in enumerate(samples):
        x = run.x.copy()
        for _ in range(3):
            x = x - LR / (1 - P) * (gradient(of_client, x) + 0.5 * (x - run.x))
        assert found[i] == pytest.approx(x, rel=1e-10)


# L2SGD+: with minibatches it ends at the minimum itself; what it sends; a program of its own.


P_L2SGD, PULL_L2SGD, LR_L2SGD = 0.3, 0.5, 0.05


def test_its_mean_begins_as_that_of_the_clients_gradients():
    state = Run("l2sgd", two_quadratics(), local={"lr": 0.1}).state
    assert state.mean.equal(state.own.mean(0)) and state.own.equal(state.table.mean(1, True))


@pytest.mark.parametrize("size", [1, 4])
def test_minibatches_do_not_keep_it_from_the_minimum(size):
    """(X_i' X_i / n_i + lambda) x_i - lambda xbar = X_i' y_i / n_i, all clients in one system."""
    data, samples = regression(participation=1.0)
    n, d = len(samples), samples[0][0].shape[1]
    coupling = PULL_L2SGD * np.kron(np.eye(n) - np.full((n, n), 1 / n), np.eye(d))
    for i, (x, _) in enumerate(samples):
        part = slice(d * i, d * i + d)
        coupling[part, part] += x.T @ x / len(x)
    right = np.concatenate([x.T @ y / len(y) for x, y in samples])
    expected = np.linalg.solve(coupling, right).reshape(n, d)
    run = Run(
        "l2sgd",
        data,
        local={"lr": LR_L2SGD, "batch_size": size},
        l2gd_p=P_L2SGD,
        l2gd_lambda=PULL_L2SGD,
    ).go(250)
    assert run.models() == pytest.approx(expected, rel=1e-6)


def chosen_batch(round, number, client, size):
    key = Draws(0, round).client_keys("minibatch", np.array([client]))
    (bits,) = bits_at(key, np.array([number])).tolist()
    return ((bits >> 32) * COUNTS[client] >> 32) // size


def test_four_rounds_are_those_of_a_plain_program_coin_by_coin_of_l2sgd():
    """With the mean of the models taken anew before every step towards it."""
    data, samples = regression(participation=1.0)
    size, everyone = 4, list(range(len(COUNTS)))
    run = Run(
        "l2sgd",
        data,
        local={"lr": LR_L2SGD, "batch_size": size},
        l2gd_p=0.6,
        l2gd_lambda=PULL_L2SGD,
    )
    x = {i: run.x.copy() for i in everyone}
    psi = {i: np.zeros(3) for i in everyone}
    table = {i: np.zeros((-(-COUNTS[i] // size), 3)) for i in everyone}
    shares = {i: np.diff([*range(0, COUNTS[i], size), COUNTS[i]]) / COUNTS[i] for i in everyone}
    for round in range(1, ROUNDS + 1):
        zeros, ones = runs(round, 0.6)
        for step in range(zeros + ones):
            xbar = mean(x, everyone, by_samples=False)
            for i in everyone:
                known = shares[i] @ table[i]
                if step < zeros:
                    j = chosen_batch(round, step, i, size)
                    part = slice(j * size, (j + 1) * size)
                    found = gradient([values[part] for values in samples[i]], x[i])
                    x[i] = x[i] - LR_L2SGD * ((found - table[i][j]) / 0.4 + known + psi[i])
                    table[i][j] = found
                else:
                    apart = PULL_L2SGD * (x[i] - xbar)
                    x[i] = x[i] - LR_L2SGD * (apart / 0.6 - 0.4 / 0.6 * psi[i] + known)
                    psi[i] = apart
    run.go(ROUNDS)
    assert run.models() == pytest.approx(np.stack(list(x.values())), rel=1e-9)


def test_a_client_is_as_it_was_in_rounds_without_it():
    data, _ = regression()
    run = Run(
        "l2sgd",
        data,
        local={"lr": LR_L2SGD, "batch_size": 4},
        l2gd_p=P_L2SGD,
        l2gd_lambda=PULL_L2SGD,
    )
    for _ in range(ROUNDS):
        before, here = run.models(), run.participants
        moved = (before != run.go().models()).any(axis=1)
        assert np.flatnonzero(moved).tolist() == here.tolist()


def test_mean_gradients_are_sent_where_several_steps_to_the_mean_follow_each_other():
    run = ran("l2sgd", {"l2gd_p": 0.5}, local={"batch_size": 16}, rounds=4)
    ledger, size = run.exchange.ledger, run.model.n_parameters
    vectors = [2 if runs(round, 0.5)[1] > 1 else 1 for round in range(1, 5)]
    assert set(vectors) == {1, 2}
    assert ledger.up_floats == 4 * sum(vectors) * size
    assert ledger.down_bits == ledger.up_bits == 32 * ledger.up_floats
