"""APFL: its ends on two quadratics, what it is at alpha = 0 and 1, and a program of its own."""

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

from mpifed.algorithms.personal.apfl import APFL
from mpifed.config.configuration import resolve
from mpifed.errors import InputError
from mpifed.federation.clients import Draws


@pytest.mark.parametrize("alpha", [0.5, 1.0])
def test_a_fixed_mixture_ends_at_the_clients_own_minimum_and_w_at_fedavgs(alpha):
    run = Run(APFL, two_quadratics(), local={"lr": 0.6}, apfl_alpha=alpha).go(200)
    assert run.x == pytest.approx(3.0, rel=1e-9)
    assert run.deployed()[:, 0] == pytest.approx([0.0, 4.0], abs=1e-9)


def test_without_a_model_of_its_own_a_client_is_one_of_fedavg_bit_for_bit():
    options = {"apfl_alpha": 0.0, "client_weights": "samples"}
    found, engine = ran("apfl", options, participation=0.5)
    expected, _ = ran("fedavg", participation=0.5)
    assert torch.equal(found.model, expected.model)
    own = engine.setup.algorithm.deploy(found, engine.everyone, Draws(0, 4)).parameters
    assert torch.equal(own, expected.model.expand_as(own))


@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_with_nothing_else_a_client_is_alone_bit_for_bit(exchange):
    found, engine = ran("apfl", {"apfl_alpha": 1.0}, exchange=exchange)
    expected, _ = ran("local")
    own = engine.setup.algorithm.deploy(found, engine.everyone, Draws(0, 4)).parameters
    assert torch.equal(own, expected.models)


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
def test_four_rounds_are_those_of_a_plain_program(adaptive, variant, by):
    data, samples = regression()
    options = {"apfl_alpha": 0.4, "apfl_adaptive": adaptive, "apfl_variant": variant}
    run = Run(APFL, data, local={**LOCAL, "epochs": 2}, client_weights=by, **options)
    w = run.x.copy()
    v, alpha = dict.fromkeys(range(len(COUNTS)), w), dict.fromkeys(range(len(COUNTS)), 0.4)
    for round in range(1, ROUNDS + 1):
        here, sent = taking_part(data, round), {}
        for i in here:
            sent[i], v[i], alpha[i] = program(samples[i], w, v[i], alpha[i], adaptive, variant)
        w = mean(sent, here, by == "samples")
    run.go(ROUNDS)
    assert run.x == pytest.approx(w, rel=1e-12)
    assert run.state.alpha.numpy() == pytest.approx(list(alpha.values()), rel=1e-12)
    assert (len(set(alpha.values())) > 1) == adaptive
    mixed = [alpha[i] * v[i] + (1 - alpha[i]) * w for i in v]
    assert run.deployed() == pytest.approx(np.stack(mixed), rel=1e-12)


def test_a_learnt_weight_follows_the_derivative_of_the_clients_loss():
    data, samples = regression(participation=1.0)
    options = {"apfl_alpha": 0.4, "apfl_adaptive": True}
    run = Run(APFL, data, local=LOCAL, **options).go(2)
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
    run = Run(APFL, data, local={**LOCAL, "epochs": 2}, **options).go(2)
    found = run.method.adapt(run.state, run.clients, run.server, Draws(0, 2))
    for i, own in enumerate(samples):
        _, v, alpha = program(own, run.x, run.x, 0.4, True, "paper")
        expected = alpha * v + (1 - alpha) * run.x
        assert found.parameters[i, 0].numpy() == pytest.approx(expected, rel=1e-12)


def test_clients_count_alike_under_gossip():
    algorithm = {"name": "apfl", "client_weights": "samples"}
    with pytest.raises(InputError, match=r"algorithm\.client_weights is 'samples'"):
        resolve({"clients": 4, "algorithm": algorithm, "exchange": "gossip"})
