from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
import transport_reference
from transport_driver import Setting, alternate

from mpifed.models.icnn import DenseICNN, dense_icnn
from mpifed.optimal_transport import losses
from mpifed.optimal_transport.benchmarks import plane_gaussians, random_icnn_benchmark
from mpifed.optimal_transport.losses import Adam, Objective

MODEL = DenseICNN(3, (7, 5, 4), 0.2)
OBJECTIVES = [
    Objective(MODEL, objective, weight, cycle)
    for objective, weight, cycle in itertools.product(("mmv2", "w2gn"), (0.0, 0.7), ("fwd", "both"))
]


@pytest.fixture
def problem():
    generator = np.random.default_rng(0)
    omega, theta = (torch.from_numpy(3 * MODEL.init(generator)) for _ in range(2))
    x, y = (torch.from_numpy(generator.normal(size=(count, 3))) for count in (9, 13))
    return omega, theta, x, y


def push(parameters, x):
    return transport_reference.push(MODEL, parameters, x)


def value(parameters, x):
    return transport_reference.value(MODEL, parameters, x)


def square(error):
    return (error**2).sum(1).mean()


def detached_loss(objective, omega, theta, x, y):
    """W_i; the mapped samples are constants in l_i."""
    mapped = push(theta, y)
    held = mapped.detach()
    loss = value(omega, x).mean() + ((held * y).sum(1) - value(omega, held)).mean()
    loss = loss + objective.lambda_cycle * square(push(omega, mapped) - y)
    if objective.cycle == "both":
        loss = loss + objective.lambda_cycle * square(push(theta, push(omega, x)) - x)
    return loss


def gradients(loss, *parameters):
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_gradients_are_those_of_automatic_differentiation(problem, objective):
    omega, theta, x, y = problem
    w, t = omega.clone().requires_grad_(), theta.clone().requires_grad_()
    loss = detached_loss(objective, w, t, x, y)
    assert torch.allclose(losses.client_loss(objective, omega, theta, x, y), loss, rtol=1e-12)
    expected = gradients(loss, w, t)
    joint = losses.joint_gradient(objective, omega, theta, x, y)
    alone = losses.omega_gradient(objective, omega, theta, x, y)
    assert torch.equal(alone, joint[0])
    for found, by_torch in zip(joint, expected, strict=True):
        assert torch.allclose(found, by_torch, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_servers_gradient_is_that_of_its_loss(problem, objective):
    omega, theta, _, y = problem
    t = theta.clone().requires_grad_()
    mapped = push(t, y)
    loss = objective.lambda_cycle * square(push(omega, mapped) - y)
    if objective.theta_objective == "mmv2":
        loss = loss + (value(omega, mapped) - (mapped * y).sum(1)).mean()
    assert torch.allclose(losses.theta_loss(objective, omega, theta, y), loss, rtol=1e-12)
    (expected,) = gradients(loss, t)
    found = losses.theta_gradient(objective, omega, theta, y)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_parts_of_the_clients_gradient_add_up_over_clients(problem):
    """Clients of equal size with one target batch: their mean is the gradient on pooled data."""
    omega, theta, _, y = problem
    objective = Objective(MODEL)
    x = torch.from_numpy(np.random.default_rng(1).normal(size=(20, 3)))
    parts = [losses.omega_gradient(objective, omega, theta, shard, y) for shard in x.split(5)]
    pooled = losses.omega_gradient(objective, omega, theta, x, y)
    assert torch.allclose(torch.stack(parts).mean(0), pooled, rtol=1e-10, atol=1e-12)
    target = losses.target_gradient(objective, omega, theta, y)
    source = losses.source_gradient(objective, omega, theta, x)
    assert torch.allclose(source + target, pooled, rtol=1e-12)


@pytest.mark.parametrize("betas", [(0.9, 0.999), (0.0, 0.5)])
def test_adam_is_torchs(betas):
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(50, generator=generator, dtype=torch.float64)
    kept = start.clone()
    reference = torch.nn.Parameter(start.clone())
    torchs = torch.optim.Adam([reference], lr=3e-2, betas=betas)
    adam, parameters = Adam(3e-2, *betas), start
    state = adam.init(parameters)
    for _ in range(20):
        gradient = torch.randn(50, generator=generator, dtype=torch.float64)
        parameters, state = adam.step(parameters, gradient, state)
        reference.grad = gradient.clone()
        torchs.step()
        assert torch.allclose(parameters, reference, rtol=1e-12, atol=1e-14)
    assert int(state.step) == 20 and torch.equal(start, kept)


def test_conjugate_steps_keep_convexity_and_resume(problem):
    omega, theta, _, y = problem
    objective, adam = Objective(MODEL), Adam(0.1)
    whole, after = losses.conjugate_steps(
        objective, omega, theta, adam, adam.init(theta), y.repeat(4, 1).split(13)
    )
    state, resumed = adam.init(theta), theta
    for batch in y.repeat(4, 1).split(13):
        stored = dataclasses.replace(state, first=state.first.clone())
        resumed, state = losses.conjugate_steps(objective, omega, resumed, adam, stored, [batch])
    assert torch.equal(whole, resumed) and torch.equal(after.second, state.second)
    assert int(state.step) == 4 and (whole[MODEL.n_skip :] >= 0).all()
    assert losses.theta_loss(objective, omega, whole, y) < losses.theta_loss(
        objective, omega, theta, y
    )


def test_alternating_steps_find_the_map_between_gaussians():
    setting = Setting(rounds=40, lr=1e-2, batch_size=256)
    before, after = alternate(Objective(dense_icnn(2)), plane_gaussians(), setting, torch.float32)
    assert before > 60 and after < 5


@pytest.mark.slow
def test_alternating_steps_come_closer_in_sixteen_dimensions():
    setting = Setting(rounds=15, lr=1e-2, batch_size=256)
    bench = random_icnn_benchmark(16, 0)
    before, after = alternate(Objective(dense_icnn(16)), bench, setting, torch.float32)
    assert after < before / 2
