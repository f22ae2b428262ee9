"""Input-convex networks for transport maps: derivatives, convexity, objectives and training."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest
import torch
import transport_reference
from hypothesis import given, settings
from hypothesis import strategies as st
from transport_driver import Setting, alternate

from mpifed.algorithms.fedmm import transport as losses
from mpifed.algorithms.fedmm.transport import FlatAdam, TransportObjective, identity_potential
from mpifed.errors import InputError
from mpifed.models.icnn import DenseICNN, dense_icnn
from mpifed.optimal_transport.benchmarks import plane_gaussians, random_icnn_benchmark
from topologies.schema import check_options

MODELS = [DenseICNN(3, (7, 5, 4), 0.3), DenseICNN(2, (4,), 0.0), dense_icnn(5)]


def parameters_of(model: DenseICNN, seed: int, scale: float = 4.0) -> torch.Tensor:
    return torch.from_numpy(scale * model.init(np.random.default_rng(seed)))


def points(model: DenseICNN, seed: int, count: int = 11) -> torch.Tensor:
    values = np.random.default_rng(seed).normal(size=(count, model.dimension))
    return torch.from_numpy(values)


@pytest.mark.parametrize("model", MODELS)
def test_value_and_all_derivatives_are_those_of_automatic_differentiation(model):
    parameters = parameters_of(model, 0).requires_grad_()
    x, v = points(model, 1).requires_grad_(), points(model, 2)
    f = transport_reference.value(model, parameters, x)
    (push,) = torch.autograd.grad(f.sum(), x, create_graph=True)
    (slope,) = torch.autograd.grad(f.sum(), parameters, create_graph=True)
    directional = (push * v).sum()
    both = torch.autograd.grad(directional, (parameters, x), allow_unused=True)

    point = model.at(parameters.detach(), x.detach())
    tangent = point.along(v)
    assert torch.allclose(point.value(), f, rtol=1e-12)
    assert torch.allclose(model.value(parameters.detach(), x.detach()), f, rtol=1e-12)
    assert torch.allclose(model.push(parameters.detach(), x.detach()), push, rtol=1e-12)
    assert torch.allclose(point.value_gradient(0.3), 0.3 * slope, rtol=1e-12, atol=1e-13)
    assert torch.allclose(tangent.gradient(), both[0], rtol=1e-11, atol=1e-11)
    assert torch.allclose(tangent.gradient(0.7), both[0] + 0.7 * slope, rtol=1e-11, atol=1e-11)
    assert torch.allclose(tangent.curvature(), both[1], rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("model", MODELS)
@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(0.1, 10))
def test_a_convexified_network_is_strongly_convex(model, seed, scale):
    generator = np.random.default_rng(seed)
    raw = torch.from_numpy(generator.normal(0, 0.2, model.n_parameters))
    parameters = model.convexify(raw)
    x, y = scale * points(model, seed), scale * points(model, seed + 1)
    gap = (x - y).square().sum(1)
    middle = model.value(parameters, (x + y) / 2)
    f, g = model.value(parameters, x), model.value(parameters, y)
    rounding = 1e-12 * (1 + f.abs() + g.abs())
    assert (middle <= (f + g) / 2 - model.strong_convexity / 8 * gap + rounding).all()
    slope = ((model.push(parameters, x) - model.push(parameters, y)) * (x - y)).sum(1)
    assert (slope >= model.strong_convexity * gap - rounding).all()


def test_a_negative_weight_breaks_convexity_and_convexify_mends_only_that():
    model = DenseICNN(2, (4, 3), 0.0)
    parameters = parameters_of(model, 0)
    parameters[-3:] = -1
    x = points(model, 0, 200)
    f = model.value(parameters, torch.cat([x, -x, 0 * x]))
    assert (f[400:] > (f[:200] + f[200:400]) / 2).any()
    mended = model.convexify(parameters)
    assert torch.equal(mended[:-3], parameters[:-3]) and (mended[-3:] == 0).all()
    assert (parameters[-3:] == -1).all()
    assert torch.equal(model.convexify(mended), mended)


def test_the_widths_are_those_of_the_published_code():
    assert dense_icnn(2).hidden == dense_icnn(16).hidden == (64, 64, 32)
    assert dense_icnn(64).hidden == (128, 128, 64)
    # (16 + 16 + 1) * 160 of the quadratics, 64 * 64 + 64 * 32 between layers, 32 at the end
    assert dense_icnn(16).n_parameters == 33 * 160 + 4096 + 2048 + 32
    options = check_options(dense_icnn, {"hidden": [8, 4]}, "model")
    assert dense_icnn(3, **options) == DenseICNN(3, (8, 4), 1e-4)
    with pytest.raises(InputError, match=r"model\.hidden.*\[\]"):
        dense_icnn(3, hidden=[])


def test_initial_parameters_have_the_published_spread_and_are_convex():
    model = dense_icnn(64)
    values = model.init(np.random.default_rng(0))
    assert abs(values[: model.n_skip].std() - 0.1) < 1e-3
    assert (values[model.n_skip :] >= 0).all() and (values[model.n_skip :] == 0).mean() > 0.4


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_derivatives_of_a_batch_do_not_depend_on_where_it_lies(dtype):
    model = dense_icnn(16)
    parameters = parameters_of(model, 0, 1.0).to(dtype)
    x, v = points(model, 1, 96).to(dtype), points(model, 2, 96).to(dtype)
    expected = model.at(parameters, x).along(v).gradient(0.5)
    for shift in (1, 3, 7):
        moved = [torch.cat([t.new_zeros(shift), t.flatten()])[shift:] for t in (parameters, x, v)]
        w, a, b = (t.view(s.shape) for t, s in zip(moved, (parameters, x, v), strict=True))
        assert torch.equal(model.at(w, a).along(b).gradient(0.5), expected)


def test_pretraining_reaches_the_identity_and_repeats_itself():
    model = dense_icnn(4)
    parameters = identity_potential(model, np.random.default_rng(3), torch.float32)
    again = identity_potential(model, np.random.default_rng(3), torch.float32)
    assert torch.equal(parameters, again)
    x = 3 * points(model, 5, 4096).float()
    assert (model.push(parameters, x) - x).square().mean() < 1.5e-3
    assert (parameters[model.n_skip :] >= 0).all()
    short = identity_potential(model, np.random.default_rng(3), torch.float32, iterations=5)
    assert (model.push(short, x) - x).square().mean() > 0.1


MODEL = DenseICNN(3, (7, 5, 4), 0.2)
OBJECTIVES = [
    TransportObjective(MODEL, objective, weight, cycle)
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
    """W_i; the mapped samples are constants in l_i, but for W as printed."""
    mapped = push(theta, y)
    held = mapped if objective.theta_objective == "printed" else mapped.detach()
    loss = value(omega, x).mean() + ((held * y).sum(1) - value(omega, held)).mean()
    loss = loss + objective.lambda_cycle * square(push(omega, mapped) - y)
    if objective.cycle == "both":
        loss = loss + objective.lambda_cycle * square(push(theta, push(omega, x)) - x)
    return loss


def gradients(loss, *parameters):
    found = torch.autograd.grad(loss, parameters, allow_unused=True)
    return [torch.zeros_like(p) if g is None else g for g, p in zip(found, parameters, strict=True)]


PRINTED = [TransportObjective(MODEL, "printed", weight) for weight in (0.0, 0.7)]


@pytest.mark.parametrize("objective", [*OBJECTIVES, *PRINTED])
def test_gradients_are_those_of_automatic_differentiation(problem, objective):
    omega, theta, x, y = problem
    w, t = omega.clone().requires_grad_(), theta.clone().requires_grad_()
    loss = detached_loss(objective, w, t, x, y)
    expected = gradients(loss, w, t)
    joint = losses.joint_gradient(objective, omega, theta, x, y)
    alone = losses.omega_gradient(objective, omega, theta, x, y)
    assert torch.equal(alone, joint[0])
    for found, by_torch in zip(joint, expected, strict=True):
        assert torch.allclose(found, by_torch, rtol=1e-9, atol=1e-11)


def server_loss(objective, omega, theta, y):
    mapped = push(theta, y)
    loss = objective.lambda_cycle * square(push(omega, mapped) - y)
    if objective.theta_objective == "mmv2":
        loss = loss + (value(omega, mapped) - (mapped * y).sum(1)).mean()
    return loss


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_servers_gradient_is_that_of_its_loss(problem, objective):
    omega, theta, _, y = problem
    t = theta.clone().requires_grad_()
    (expected,) = gradients(server_loss(objective, omega, t, y), t)
    found = losses.theta_gradient(objective, omega, theta, y)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-11)


def test_parts_of_the_clients_gradient_add_up_over_clients(problem):
    """Clients of equal size with one target batch: their mean is the gradient on pooled data."""
    omega, theta, _, y = problem
    objective = TransportObjective(MODEL)
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
    adam, parameters = FlatAdam(3e-2, *betas), start
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
    objective, adam = TransportObjective(MODEL), FlatAdam(0.1)
    whole, after = losses.conjugate_steps(
        objective, omega, theta, adam, adam.init(theta), y.repeat(4, 1).split(13)
    )
    state, resumed = adam.init(theta), theta
    for batch in y.repeat(4, 1).split(13):
        stored = dataclasses.replace(state, first=state.first.clone())
        resumed, state = losses.conjugate_steps(objective, omega, resumed, adam, stored, [batch])
    assert torch.equal(whole, resumed) and torch.equal(after.second, state.second)
    assert int(state.step) == 4 and (whole[MODEL.n_skip :] >= 0).all()
    assert server_loss(objective, omega, whole, y) < server_loss(objective, omega, theta, y)


def test_alternating_steps_find_the_map_between_gaussians():
    setting = Setting(rounds=40, lr=1e-2, batch_size=256)
    before, after = alternate(
        TransportObjective(dense_icnn(2)), plane_gaussians(), setting, torch.float32
    )
    assert before > 60 and after < 5


@pytest.mark.slow
def test_alternating_steps_come_closer_in_sixteen_dimensions():
    setting = Setting(rounds=15, lr=1e-2, batch_size=256)
    bench = random_icnn_benchmark(16, 0)
    before, after = alternate(TransportObjective(dense_icnn(16)), bench, setting, torch.float32)
    assert after < before / 2
