"""Dictionary learning against scipy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from sklearn.decomposition import DictionaryLearning
from surrogate_problems import PROBLEMS, build, mean_statistic, mm, objective, start


@pytest.mark.parametrize("name", ["lasso", "printed", "overcomplete", "factors", "nonnegative"])
def test_the_gradient_of_the_objective_is_that_of_the_surrogate(name):
    """The envelope: grad of (28) = factor (theta s1 - s2) + 2 eta theta at s = E S̄(Z, theta)."""
    problem = PROBLEMS[name]
    surrogate = build("dictionary", 8, **problem.options, tolerance=1e-14)
    z, theta = problem.samples(30), start(surrogate, 2)
    s = mean_statistic(surrogate, z, theta)
    k = surrogate.n_atoms
    matrix = theta.view(8, k)
    slope = surrogate.factor * (matrix @ s[: k * k].view(k, k) - s[k * k :].view(8, k))
    expected = (slope + 2 * surrogate.ridge * matrix).flatten()
    step = 1e-5
    for i in range(0, len(theta), 5):
        bump = torch.zeros_like(theta)
        bump[i] = step
        ahead, behind = (objective(surrogate, z, theta + sign * bump) for sign in (1, -1))
        assert (ahead - behind) / (2 * step) == pytest.approx(float(expected[i]), abs=2e-6)


def least(objective, z, size, positive):
    """The minimum over h (or over h = u - v with u, v >= 0) by a quasi-Newton method."""
    bounds = [(0, None)] * size if positive else None
    options = {"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000, "maxfun": 100_000}
    begin = np.zeros(size)
    return minimize(objective, begin, (z,), "L-BFGS-B", bounds=bounds, options=options).fun


@pytest.mark.parametrize("name", ["factors", "lasso", "printed", "nonnegative"])
def test_losses_are_the_minimum_over_codes(name):
    surrogate, z = PROBLEMS[name].make(), PROBLEMS[name].samples(6)
    theta = start(surrogate, 1)
    matrix, factor = theta.view(8, 6).numpy(), surrogate.factor
    split = np.hstack([matrix, -matrix])

    def ridge(h, row):
        return 0.5 * np.sum((row - matrix @ h) ** 2) + 0.05 * h @ h

    def lasso(uv, row):
        return 0.5 * factor * np.sum((row - split @ uv) ** 2) + 0.1 * uv.sum()

    def nonnegative(h, row):
        return 0.5 * np.sum((row - matrix @ h) ** 2) + 0.1 * h.sum()

    objective_of, size = {
        "factors": (ridge, 6),
        "nonnegative": (nonnegative, 6),
        "lasso": (lasso, 12),
        "printed": (lasso, 12),
    }[name]
    for row, loss in zip(z.numpy(), surrogate.losses(z, theta).tolist(), strict=True):
        assert loss == pytest.approx(least(objective_of, row, size, name != "factors"), rel=1e-6)


def test_the_printed_factor_two_is_another_objective():
    half, printed = PROBLEMS["lasso"].make(), PROBLEMS["printed"].make()
    s = mean_statistic(half, PROBLEMS["lasso"].samples(50), start(half, 0))
    k, eta = 6, 0.2
    s1, s2 = s[: k * k].view(k, k), s[k * k :].view(8, k)
    for surrogate, shift in ((half, 2 * eta), (printed, eta)):
        expected = s2 @ torch.linalg.inv(s1 + shift * torch.eye(k, dtype=torch.float64))
        assert torch.allclose(surrogate.minimiser(s), expected.flatten(), atol=1e-10)
    assert float((half.minimiser(s) - printed.minimiser(s)).abs().max()) > 1e-3


def test_unit_ball_dictionaries_are_as_good_as_scikit_learns():
    z = PROBLEMS["balls"].samples(100)
    surrogate = build("dictionary", 8, n_atoms=6, atoms="unit_ball", code_penalty=0.3)
    theta = start(surrogate, 0)
    ours = objective(surrogate, z, mm(surrogate, z, theta, 40)[-1])
    begin = theta.view(8, 6).T.numpy()
    model = DictionaryLearning(
        6,
        alpha=0.3,
        max_iter=40,
        tol=1e-12,
        fit_algorithm="cd",
        transform_algorithm="lasso_cd",
        dict_init=begin,
        code_init=np.zeros((100, 6)),
        random_state=0,
    ).fit(z.numpy())
    theirs = torch.from_numpy(model.components_.T.copy()).flatten()
    theirs = objective(surrogate, z, theirs / theirs.view(8, 6).norm(dim=0).max().clamp(min=1))
    assert ours <= 1.03 * theirs
