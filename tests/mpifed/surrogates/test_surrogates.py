"""What every surrogate must be: MM-1, MM-2, and the same numbers for a client in any company."""

from __future__ import annotations

import json
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from surrogate_problems import PROBLEMS, mean_statistic, mm, objective, phi, psi, start

from mpifed.surrogate import columns_in_unit_ball
from mpifed.testing import check_surrogate, run_command

SEEDS = st.integers(0, 10_000)
EVERY = pytest.mark.parametrize("name", PROBLEMS)


def test_every_surrogate_has_a_problem(capsys):
    assert run_command(["run", "--list", "surrogates", "--json"]) == 0
    names = {each["name"] for each in json.loads(capsys.readouterr().out)}
    assert names == {problem.name for problem in PROBLEMS.values()}


@EVERY
def test_it_passes_the_common_checks(name):
    surrogate, z = PROBLEMS[name].make(), PROBLEMS[name].samples(100)
    if name == "poisson_known":
        z = z * (1.7 / z.mean())
    check_surrogate(surrogate, z, psi=partial(psi, surrogate), phi=partial(phi, surrogate))


RemarkOne = type(PROBLEMS["remark_one"].make())


class Summed(RemarkOne):
    """Statistics that are sums."""

    def statistics(self, z, theta, offsets):
        counts = torch.from_numpy(np.diff(offsets))[:, None]
        return super().statistics(z, theta, offsets) * counts


class Overshooting(RemarkOne):
    """A minimiser that goes too far, though each theta has an s."""

    def minimiser(self, s):
        return 3 * super().minimiser(s)

    def surrogate_of(self, theta):
        return 9 * super().surrogate_of(theta)


class Shrunk(RemarkOne):
    """Statistics that are too small, so that the surrogate does not touch the loss."""

    def statistics(self, z, theta, offsets):
        return super().statistics(z, theta, offsets) * 0.8


@pytest.mark.parametrize(
    ("broken", "fault"),
    [(Summed, "average"), (Overshooting, "increases"), (Shrunk, "below|slopes")],
)
def test_a_surrogate_that_breaks_a_promise_is_refused(broken, fault):
    surrogate, z = broken(), PROBLEMS["remark_one"].samples(40)
    with pytest.raises(AssertionError, match=fault):
        check_surrogate(surrogate, z, psi=partial(psi, surrogate), phi=partial(phi, surrogate))


@EVERY
@settings(max_examples=6, deadline=None)
@given(seeds=st.tuples(SEEDS, SEEDS, SEEDS))
def test_the_surrogate_majorises_the_loss(name, seeds):
    """MM-1; where phi and psi hold for a known E Z, the samples have that mean."""
    surrogate, z = PROBLEMS[name].make(), PROBLEMS[name].samples(40, seeds[0])
    if name == "poisson_known":
        z = z * (1.7 / z.mean()) if z.sum() > 0 else z + 1.7
    tau, theta = start(surrogate, seeds[1]), start(surrogate, seeds[2])
    s = mean_statistic(surrogate, z, tau)
    bound = (
        surrogate.losses(z, tau).mean()
        + psi(surrogate, theta)
        - psi(surrogate, tau)
        - s @ (phi(surrogate, theta) - phi(surrogate, tau))
    )
    value = surrogate.losses(z, theta).mean()
    assert value <= bound + 1e-7 * (1 + abs(bound))


@EVERY
def test_mm_never_increases_the_objective_and_settles(name):
    surrogate, z = PROBLEMS[name].make(), PROBLEMS[name].samples(120)
    if name == "poisson_known":
        z = z * (1.7 / z.mean())
    path = mm(surrogate, z, start(surrogate, 3), 30)
    values = np.array([objective(surrogate, z, theta) for theta in path])
    assert np.isfinite(values).all()
    assert (np.diff(values) <= 1e-7 * (1 + np.abs(values[1:]))).all()
    if name != "remark_one":  # which is there after one step
        assert values[-1] < values[1]
    assert values[-2] - values[-1] < 0.02 * (values[0] - values[-1])


@EVERY
def test_t_of_the_statistic_is_the_minimum_of_the_surrogate(name):
    """MM-2: g + psi - <s, phi> is larger at points around."""
    surrogate, z = PROBLEMS[name].make(), PROBLEMS[name].samples(120)
    s = mean_statistic(surrogate, z, start(surrogate, 3))
    best = surrogate.minimiser(s)

    def value(theta):
        return float(psi(surrogate, theta) - s @ phi(surrogate, theta)) + surrogate.penalty(theta)

    generator = np.random.default_rng(0)
    lowest = value(best)
    for scale in (1e-3, 1e-2, 0.1):
        for _ in range(20):
            other = best + scale * torch.from_numpy(generator.standard_normal(len(best)))
            other = into_domain(name, surrogate, other)
            assert value(other) > lowest - 1e-12 * (1 + abs(lowest))


def into_domain(name, surrogate, theta):
    """A point where g is finite, near ``theta``."""
    if name == "mixture_all":
        mixture = surrogate.split(theta)
        values, vectors = torch.linalg.eigh(mixture.covariances @ mixture.covariances.mT)
        positive = (vectors * values.sqrt()[:, None, :]) @ vectors.mT
        weights = mixture.weights.abs() / mixture.weights.abs().sum()
        return surrogate.join(type(mixture)(mixture.means, positive, weights))
    if name == "balls":
        return columns_in_unit_ball(theta.view(surrogate.dimension, -1)).flatten()
    if name in ("squares_box", "squares_ball"):
        return surrogate.minimiser(theta)
    return theta


SMOOTH = ["remark_one", "poisson", "mixture", "lasso", "printed", "squares_ridge", "squares_none"]


@pytest.mark.parametrize("name", SMOOTH)
def test_t_agrees_with_a_numerical_minimiser(name):
    surrogate, z = PROBLEMS[name].make(), PROBLEMS[name].samples(120)
    s = mean_statistic(surrogate, z, start(surrogate, 3))

    def value(vector):
        theta = torch.tensor(vector, dtype=torch.float64, requires_grad=True)
        smooth = psi(surrogate, theta) - s @ phi(surrogate, theta)
        (slope,) = torch.autograd.grad(smooth, theta)
        step = 1e-6
        bumps = np.eye(len(vector)) * step
        g = [
            (surrogate.penalty(theta.detach() + b) - surrogate.penalty(theta.detach() - b))
            / (2 * step)
            for b in torch.from_numpy(bumps)
        ]
        return smooth.item() + surrogate.penalty(theta.detach()), slope.numpy() + np.array(g)

    found = minimize(
        value, surrogate.init(np.random.default_rng(8)), jac=True, method="BFGS", tol=1e-10
    )
    assert np.allclose(found.x, surrogate.minimiser(s), rtol=1e-6, atol=1e-6)


@EVERY
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS)
def test_every_parameter_has_a_surrogate(name, seed):
    surrogate = PROBLEMS[name].make()
    theta = start(surrogate, seed)
    s = surrogate.surrogate_of(theta)
    assert theta.shape == (surrogate.n_parameters,) and s.shape == (surrogate.size,)
    assert theta.dtype == s.dtype == torch.float64
    assert torch.allclose(surrogate.minimiser(s), theta, atol=1e-9)
    assert torch.allclose(surrogate.project(s), s, atol=1e-12)
    assert surrogate.penalty(theta) < np.inf


@EVERY
def test_statistics_are_in_s_and_projections_stay_there(name):
    surrogate, z = PROBLEMS[name].make(), PROBLEMS[name].samples(60)
    s = mean_statistic(surrogate, z, start(surrogate, 1))
    assert torch.allclose(surrogate.project(s), s, atol=1e-12)
    generator = torch.Generator().manual_seed(0)
    out = s + torch.randn(4, 3, len(s), generator=generator, dtype=torch.float64)
    once = surrogate.project(out)
    assert once.shape == out.shape
    assert torch.allclose(surrogate.project(once), once, atol=1e-12)
    # The nearest point of a convex set sees every other at an obtuse angle.
    weights = torch.ones(len(s), dtype=torch.float64)
    if name == "mixture_all":
        weights[: surrogate.components * surrogate.dimension] = 2  # s1 is twice in the moments
    assert ((weights * (out - once) * (s - once)).sum(-1) <= 1e-9).all()
    parameters = surrogate.minimiser(once)
    assert parameters.shape == (4, 3, surrogate.n_parameters)
    assert torch.isfinite(parameters).all()
    for row in (0, 3):  # bit for bit what it is alone
        assert torch.equal(surrogate.minimiser(once[row, 1]), parameters[row, 1])
        assert torch.equal(surrogate.project(out[row, 1]), once[row, 1])


@EVERY
@settings(max_examples=5, deadline=None)
@given(seed=SEEDS, sizes=st.lists(st.integers(1, 45), min_size=2, max_size=7), data=st.data())
def test_a_clients_statistics_do_not_depend_on_the_others(name, seed, sizes, data):
    surrogate = PROBLEMS[name].make()
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    z, theta = PROBLEMS[name].samples(int(offsets[-1]), seed), start(surrogate, seed)
    together = surrogate.statistics(z, theta, offsets)
    assert together.shape == (len(sizes), surrogate.size)
    own = surrogate.statistics(z, theta.expand(len(sizes), -1), offsets)
    assert torch.equal(own, together)
    first = data.draw(st.integers(0, len(sizes) - 1))
    last = data.draw(st.integers(first + 1, len(sizes)))
    part = z[offsets[first] : offsets[last]].clone()
    alone = surrogate.statistics(part, theta, offsets[first : last + 1] - offsets[first])
    assert torch.equal(alone, together[first:last])
    losses = surrogate.losses(z, theta)
    assert torch.equal(surrogate.losses(part, theta), losses[offsets[first] : offsets[last]])


@EVERY
@settings(max_examples=10, deadline=None)
@given(seed=SEEDS)
def test_parameters_are_projected_on_where_the_penalty_is_finite(name, seed):
    """On Theta: what T gives stays, what does not lie there becomes its nearest point."""
    surrogate = PROBLEMS[name].make()
    generator = torch.Generator().manual_seed(seed)
    inside = start(surrogate, seed)
    assert torch.allclose(surrogate.project_parameters(inside), inside, rtol=0, atol=1e-12)
    out = inside + 2 * torch.randn(4, len(inside), generator=generator, dtype=torch.float64)
    once = surrogate.project_parameters(out)
    assert once.shape == out.shape
    assert torch.allclose(surrogate.project_parameters(once), once, rtol=0, atol=1e-12)
    assert all(surrogate.penalty(row) < np.inf for row in once)
    # The nearest point of a convex set sees every other at an obtuse angle.
    others = surrogate.project_parameters(inside + 0.5 * (out.flip(0) - inside))
    for other in (inside, once.flip(0), others):
        assert (((out - once) * (other - once)).sum(-1) <= 1e-9).all()
    assert torch.equal(surrogate.project_parameters(out[1]), once[1])


DOMAINS = ["squares_box", "squares_ball", "mixture_all", "balls", "remark_one", "poisson_known"]


@pytest.mark.parametrize("name", DOMAINS)
def test_these_parameters_have_a_domain(name):
    surrogate = PROBLEMS[name].make()
    far = start(surrogate, 0) + 100 * torch.tensor([(-1.0) ** k for k in range(64)])[
        : surrogate.n_parameters
    ].double() * (1 if name == "poisson_known" else -1)
    assert not torch.equal(surrogate.project_parameters(far), far)
