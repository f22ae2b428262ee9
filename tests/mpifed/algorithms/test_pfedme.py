"""pFedMe: its fixed point, its limit of a strong pull, and a program of its own."""

from __future__ import annotations

import numpy as np
import pytest
from convex import Run, quadratics, two_quadratics
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

from mpifed.algorithms.personal.pfedme import PFedMe
from mpifed.federation.clients import Draws

PULL, ETA, LR = 2.0, 0.05, 0.1
W, THETA = 18 / 7, [12 / 7, 24 / 7]
"""w is sum b_i c_i / sum b_i, b_i = lambda a_i / (a_i + lambda); theta between w and c_i."""

WAYS = {
    "envelope": {"local": {"lr": 0.2}, "pfedme_eta": 0.4, "inner_steps": 60},
    "cold": {"local": {"lr": 0.2}, "pfedme_eta": 0.4, "inner_steps": 60, "warm_start": False},
    "prox_to_average": {"local": {"lr": 0.2, "epochs": 60}, "pfedme_variant": "prox_to_average"},
}


@pytest.mark.parametrize("way", WAYS)
def test_it_ends_at_the_minimum_of_the_mean_envelope(way):
    run = Run(PFedMe, two_quadratics(), pfedme_lambda=PULL, **WAYS[way]).go(50)
    assert run.x == pytest.approx(W, rel=1e-9)
    assert run.deployed()[:, 0] == pytest.approx(THETA, rel=1e-9)


def test_a_strong_pull_is_fedavg_with_the_step_of_w():
    strong = {"pfedme_lambda": 1e7, "pfedme_eta": 0.1, "client_weights": "samples"}
    plain = {"batch_size": 16, "epochs": 2}
    found, _ = ran("pfedme", strong, local={**plain, "lr": 1e-7}, dtype="float64")
    expected, _ = ran("fedavg", local={**plain, "lr": 0.1}, dtype="float64")
    first, _ = ran("fedavg", local={**plain, "lr": 0.1}, dtype="float64", rounds=0)
    moved = (expected.model - first.model).abs().max()
    assert (found.model - expected.model).abs().max() < 1e-5 * moved


def program(samples, w, warm=True, epochs=2, inner=3):
    """The local steps of one client; returns theta_i and w_i."""
    theta = w
    for _ in range(epochs):
        theta = theta if warm else w
        for _ in range(inner):
            theta = theta - LR * (gradient(samples, theta) + PULL * (theta - w))
        w = w - ETA * PULL * (w - theta)
    return theta, w


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("by", ["uniform", "samples"])
def test_four_rounds_are_those_of_a_plain_program(warm, by):
    data, samples = regression()
    options = {"pfedme_lambda": PULL, "pfedme_eta": ETA, "inner_steps": 3, "beta": 1.5}
    run = Run(
        PFedMe, data, local={**LOCAL, "epochs": 2}, warm_start=warm, client_weights=by, **options
    )
    w = run.x.copy()
    theta = dict.fromkeys(range(len(COUNTS)), w)
    for round in range(1, ROUNDS + 1):
        here, sent = taking_part(data, round), {}
        for i in here:
            theta[i], sent[i] = program(samples[i], w, warm)
        w = w + 1.5 * (mean(sent, here, by == "samples") - w)
    run.go(ROUNDS)
    assert run.x == pytest.approx(w, rel=1e-12)
    assert run.deployed() == pytest.approx(np.stack(list(theta.values())), rel=1e-12)


def test_four_rounds_of_the_simpler_variant_are_those_of_a_plain_program():
    data, samples = regression()
    run = Run(
        PFedMe,
        data,
        local={**LOCAL, "epochs": 2},
        pfedme_lambda=PULL,
        pfedme_variant="prox_to_average",
        client_weights="samples",
    )
    w = run.x.copy()
    theta = dict.fromkeys(range(len(COUNTS)), w)
    for round in range(1, ROUNDS + 1):
        here = taking_part(data, round)
        for i in here:
            for _ in range(2):
                step = gradient(samples[i], theta[i]) + PULL * (theta[i] - w)
                theta[i] = theta[i] - LR * step
        w = mean(theta, here, by_samples=True)
    run.go(ROUNDS)
    assert run.x == pytest.approx(w, rel=1e-12)
    assert run.deployed() == pytest.approx(np.stack(list(theta.values())), rel=1e-12)


def test_an_unseen_client_takes_one_round_of_steps_from_the_shared_model():
    data, samples = regression()
    options = {"pfedme_lambda": PULL, "pfedme_eta": ETA, "inner_steps": 3}
    run = Run(PFedMe, data, local={**LOCAL, "epochs": 2}, **options).go(2)
    found = run.method.adapt(run.state, run.clients, run.server, Draws(0, 2))
    for i, of_client in enumerate(samples):
        expected, _ = program(of_client, run.x)
        assert found.parameters[i, 0].numpy() == pytest.approx(expected, rel=1e-12)


def test_a_weak_pull_leaves_clients_at_their_own_minima():
    options = {"pfedme_lambda": 1e-9, "pfedme_eta": 0.1, "inner_steps": 120}
    run = Run(PFedMe, two_quadratics(), local={"lr": 0.2}, **options).go(1)
    assert run.deployed()[:, 0] == pytest.approx([0, 4], abs=1e-7)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_steps_beyond_the_eigenvalue_bound_are_warned_of_and_diverge(momentum):
    bound = 2 * (1 + momentum)
    for step, diverges in ((0.98 * bound, False), (1.02 * bound, True)):
        data = quadratics([[[1e-6]]] * 2, [[0.0], [4.0]])
        local = {"lr": 0.1, "momentum": momentum}
        options = {"pfedme_lambda": step / 0.1, "pfedme_eta": 1e-9, "inner_steps": 2000}
        run = Run(PFedMe, data, local=local, **options)
        said = run.method.remarks(run.state, run.clients, run.server)
        assert any("diverge above" in line for line in said) == diverges
        assert (np.abs(run.go(1).deployed()).max() > 1e6) == diverges
