"""Ditto: where it ends on two quadratics, what it is without its pull, and a program of its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import Run, quadratics, two_quadratics
from personal_runs import (
    COUNTS,
    LOCAL,
    ROUNDS,
    gradient,
    mean,
    ran,
    regression,
)

from mpifed.errors import InputError
from mpifed.testing import run_rounds

PULL = 2.0


@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_without_a_pull_it_is_local_beside_fedavg_bit_for_bit(exchange):
    found = ran("ditto", {"ditto_lambda": 0.0}, exchange=exchange, participation=0.5).state
    alone = ran("local", participation=0.5).state
    averaged = ran("fedavg", exchange=exchange, participation=0.5).state
    assert torch.equal(found.personal, alone.models)
    assert torch.equal(found.model, averaged.model)


def test_the_pull_leaves_the_global_model_to_fedavg_and_moves_the_personal_ones():
    found = ran("ditto", {"ditto_lambda": 0.5}).state
    averaged, alone = ran("fedavg").state, ran("local").state
    assert torch.equal(found.model, averaged.model)
    assert not torch.allclose(found.personal, alone.models)


def test_four_rounds_are_those_of_a_plain_program():
    data, samples = regression()
    run = Run("ditto", data, local={**LOCAL, "epochs": 2}, ditto_lambda=PULL, personal_epochs=3)
    w = run.x.copy()
    v = {i: w.copy() for i in range(len(COUNTS))}
    for _ in range(ROUNDS):
        here, trained = run.participants, {}
        for i in here:
            for _ in range(3):
                v[i] = v[i] - 0.1 * (gradient(samples[i], v[i]) + PULL * (v[i] - w))
            trained[i] = w
            for _ in range(2):
                trained[i] = trained[i] - 0.1 * gradient(samples[i], trained[i])
        w = mean(trained, here, by_samples=True)
        run.go()
    assert run.x == pytest.approx(w, rel=1e-12)
    assert run.models() == pytest.approx(np.stack([v[i] for i in v]), rel=1e-12)


def test_an_unseen_client_trains_a_personal_model_from_the_global_one():
    data, samples = regression()
    run = Run("ditto", data, local=LOCAL, ditto_lambda=PULL, personal_epochs=2).go(2)
    found = run.adapted()
    for i, of_client in enumerate(samples):
        v = run.x.copy()
        for _ in range(2):
            v = v - 0.1 * (gradient(of_client, v) + PULL * (v - run.x))
        assert found[i] == pytest.approx(v, rel=1e-12)


# APFL: what it is at alpha = 0 and 1, and a program of its own.


def test_without_a_model_of_its_own_a_client_is_one_of_fedavg_bit_for_bit():
    options = {"apfl_alpha": 0.0, "client_weights": "samples"}
    run = ran("apfl", options, participation=0.5)
    expected = ran("fedavg", participation=0.5).state.model
    assert torch.equal(run.state.model, expected)
    assert (run.deployed.parameters == expected.numpy()).all()


@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_with_nothing_else_a_client_is_alone_bit_for_bit(exchange):
    run = ran("apfl", {"apfl_alpha": 1.0}, exchange=exchange)
    assert np.array_equal(run.deployed.parameters, ran("local").state.models)


def program(samples, w, v, alpha, adaptive, variant, epochs=2, lr=0.1):
    """The local steps of one client; returns w_i, v_i and alpha_i."""
    for number in range(epochs):
        before = w
        if variant == "published":
            w = w - lr * gradient(samples, w)
        g = gradient(samples, alpha * v + (1 - alpha) * w)
        slope = (v - w) @ g
        if variant == "paper":
            w = w - lr * gradient(samples, before)
        v = v - lr * alpha * g
        if variant == "published":
            # By the chain rule on the mixture's two parts, as the published code adds them up.
            slope = alpha * ((v - w) @ (alpha * g)) + (1 - alpha) * ((v - w) @ ((1 - alpha) * g))
            slope += 0.02 * alpha
        if adaptive and number == 0:
            alpha = min(1.0, max(0.0, alpha - lr * slope))
    return w, v, alpha


@pytest.mark.parametrize("variant", ["paper", "published"])
@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("by", ["uniform", "samples"])
def test_four_rounds_are_those_of_a_plain_program_of_apfl(adaptive, variant, by):
    data, samples = regression()
    options = {"apfl_alpha": 0.4, "apfl_adaptive": adaptive, "apfl_variant": variant}
    run = Run("apfl", data, local={**LOCAL, "epochs": 2}, client_weights=by, **options)
    w = run.x.copy()
    v, alpha = dict.fromkeys(range(len(COUNTS)), w), dict.fromkeys(range(len(COUNTS)), 0.4)
    for _ in range(ROUNDS):
        here, sent = run.participants, {}
        for i in here:
            sent[i], v[i], alpha[i] = program(samples[i], w, v[i], alpha[i], adaptive, variant)
        w = mean(sent, here, by == "samples")
        run.go()
    assert run.x == pytest.approx(w, rel=1e-12)
    assert run.state.alpha.numpy() == pytest.approx(list(alpha.values()), rel=1e-12)
    assert (len(set(alpha.values())) > 1) == adaptive
    mixed = [alpha[i] * v[i] + (1 - alpha[i]) * w for i in v]
    assert run.models() == pytest.approx(np.stack(mixed), rel=1e-12)


def test_a_learnt_weight_follows_the_derivative_of_the_clients_loss():
    data, samples = regression(participation=1.0)
    options = {"apfl_alpha": 0.4, "apfl_adaptive": True}
    run = Run("apfl", data, local=LOCAL, **options).go(2)
    w, v, alpha = run.x, run.state.personal[:, 0].numpy(), run.state.alpha.numpy()
    run.go()
    for i, (x, y) in enumerate(samples):
        up, down = (
            np.square(x @ (a * v[i] + (1 - a) * w) - y).mean() / 2
            for a in (alpha[i] + 1e-6, alpha[i] - 1e-6)
        )
        slope = (up - down) / 2e-6
        assert slope != 0 and run.state.alpha[i] == pytest.approx(alpha[i] - 0.1 * slope, rel=1e-6)


def test_an_unseen_client_mixes_a_model_of_its_own_into_the_global_one():
    data, samples = regression()
    options = {"apfl_alpha": 0.4, "apfl_adaptive": True}
    run = Run("apfl", data, local={**LOCAL, "epochs": 2}, **options).go(2)
    found = run.adapted()
    for i, own in enumerate(samples):
        _, v, alpha = program(own, run.x, run.x, 0.4, True, "paper")
        expected = alpha * v + (1 - alpha) * run.x
        assert found[i] == pytest.approx(expected, rel=1e-12)


def test_clients_count_alike_under_gossip():
    algorithm = {"name": "apfl", "client_weights": "samples"}
    with pytest.raises(InputError, match=r"client_weights.*'samples'.*uniform"):
        run_rounds(algorithm, exchange="gossip", rounds=0)


# pFedMe: its fixed point, its limit of a strong pull, and a program of its own.


PULL_PFEDME, ETA, LR = 2.0, 0.05, 0.1
W, THETA = 18 / 7, [12 / 7, 24 / 7]
"""w is sum b_i c_i / sum b_i, b_i = lambda a_i / (a_i + lambda); theta between w and c_i."""

WAYS = {
    "envelope": {"local": {"lr": 0.2}, "pfedme_eta": 0.4, "inner_steps": 60},
    "cold": {"local": {"lr": 0.2}, "pfedme_eta": 0.4, "inner_steps": 60, "warm_start": False},
    "prox_to_average": {"local": {"lr": 0.2, "epochs": 60}, "pfedme_variant": "prox_to_average"},
}


@pytest.mark.parametrize("way", WAYS)
def test_it_ends_at_the_minimum_of_the_mean_envelope(way):
    run = Run("pfedme", two_quadratics(), pfedme_lambda=PULL_PFEDME, **WAYS[way]).go(50)
    assert run.x == pytest.approx(W, rel=1e-9)
    assert run.models()[:, 0] == pytest.approx(THETA, rel=1e-9)


def test_a_strong_pull_is_fedavg_with_the_step_of_w():
    strong = {"pfedme_lambda": 1e7, "pfedme_eta": 0.1, "client_weights": "samples"}
    plain = {"batch_size": 16, "epochs": 2}
    found = ran("pfedme", strong, local={**plain, "lr": 1e-7}, dtype="float64").state.model
    run = ran("fedavg", local={**plain, "lr": 0.1}, dtype="float64", rounds=0)
    first = run.state.model
    expected = run.advance(4).state.model
    assert (found - expected).abs().max() < 1e-5 * (expected - first).abs().max()


def program_of_pfedme(samples, w, warm=True, epochs=2, inner=3):
    """The local steps of one client; returns theta_i and w_i."""
    theta = w
    for _ in range(epochs):
        theta = theta if warm else w
        for _ in range(inner):
            theta = theta - LR * (gradient(samples, theta) + PULL_PFEDME * (theta - w))
        w = w - ETA * PULL_PFEDME * (w - theta)
    return theta, w


@pytest.mark.parametrize("warm", [True, False])
@pytest.mark.parametrize("by", ["uniform", "samples"])
def test_four_rounds_are_those_of_a_plain_program_of_pfedme(warm, by):
    data, samples = regression()
    options = {"pfedme_lambda": PULL_PFEDME, "pfedme_eta": ETA, "inner_steps": 3, "beta": 1.5}
    run = Run(
        "pfedme", data, local={**LOCAL, "epochs": 2}, warm_start=warm, client_weights=by, **options
    )
    w = run.x.copy()
    theta = dict.fromkeys(range(len(COUNTS)), w)
    for _ in range(ROUNDS):
        here, sent = run.participants, {}
        for i in here:
            theta[i], sent[i] = program_of_pfedme(samples[i], w, warm)
        w = w + 1.5 * (mean(sent, here, by == "samples") - w)
        run.go()
    assert run.x == pytest.approx(w, rel=1e-12)
    assert run.models() == pytest.approx(np.stack(list(theta.values())), rel=1e-12)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_four_rounds_of_the_simpler_variant_are_those_of_a_plain_program(momentum):
    data, samples = regression()
    run = Run(
        "pfedme",
        data,
        local={**LOCAL, "epochs": 2, "momentum": momentum},
        pfedme_lambda=PULL_PFEDME,
        pfedme_variant="prox_to_average",
        client_weights="samples",
    )
    w = run.x.copy()
    theta = dict.fromkeys(range(len(COUNTS)), w)
    velocity = dict.fromkeys(range(len(COUNTS)), 0.0)
    for _ in range(ROUNDS):
        here = run.participants
        for i in here:
            for _ in range(2):
                step = gradient(samples[i], theta[i]) + PULL_PFEDME * (theta[i] - w)
                velocity[i] = momentum * velocity[i] + step
                theta[i] = theta[i] - LR * velocity[i]
        w = mean(theta, here, by_samples=True)
        run.go()
    assert run.x == pytest.approx(w, rel=1e-12)
    assert run.models() == pytest.approx(np.stack(list(theta.values())), rel=1e-12)


def test_an_unseen_client_takes_one_round_of_steps_from_the_shared_model():
    data, samples = regression()
    options = {"pfedme_lambda": PULL_PFEDME, "pfedme_eta": ETA, "inner_steps": 3}
    run = Run("pfedme", data, local={**LOCAL, "epochs": 2}, **options).go(2)
    found = run.adapted()
    for i, of_client in enumerate(samples):
        expected, _ = program_of_pfedme(of_client, run.x)
        assert found[i] == pytest.approx(expected, rel=1e-12)


def test_a_weak_pull_leaves_clients_at_their_own_minima():
    options = {"pfedme_lambda": 1e-9, "pfedme_eta": 0.1, "inner_steps": 120}
    run = Run("pfedme", two_quadratics(), local={"lr": 0.2}, **options).go(1)
    assert run.models()[:, 0] == pytest.approx([0, 4], abs=1e-7)


@pytest.mark.parametrize("momentum", [0.0, 0.5])
def test_steps_beyond_the_eigenvalue_bound_are_warned_of_and_diverge(momentum):
    bound = 2 * (1 + momentum)
    for step, diverges in ((0.98 * bound, False), (1.02 * bound, True)):
        data = quadratics([[[1e-6]]] * 2, [[0.0], [4.0]])
        local = {"lr": 0.1, "momentum": momentum}
        options = {"pfedme_lambda": step / 0.1, "pfedme_eta": 1e-9, "inner_steps": 2000}
        run = Run("pfedme", data, local=local, **options)
        lines = run.algorithm.remarks(run.state, run.clients, run.exchange)
        assert any("diverge" in line for line in lines) == diverges
        assert (np.abs(run.go(1).models()).max() > 1e6) == diverges
