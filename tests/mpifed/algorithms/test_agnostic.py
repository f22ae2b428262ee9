"""AFL: its saddle points, and the method written out in numpy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from convex import Run, clients_of, two_quadratics
from least_squares import LeastSquares

from mpifed.algorithms.global_model.agnostic import Agnostic

ROOT = 3**0.5
norm = np.linalg.norm


def nearest_in_the_simplex(v):
    """By trying every support, of which the best feasible one is the projection."""
    best = None
    for size in range(1, len(v) + 1):
        for chosen in map(list, itertools.combinations(range(len(v)), size)):
            point = np.zeros_like(v)
            point[chosen] = v[chosen] + (1 - v[chosen].sum()) / size
            if point.min() >= 0 and (best is None or norm(point - v) < norm(best - v)):
                best = point
    return best


def test_it_ends_where_both_risks_are_equal():
    """x^2 / 2 = 3 (x - 4)^2 / 2 and lambda_1 x = 3 lambda_2 (4 - x)."""
    run = Run(Agnostic, two_quadratics(), deployed="last").go(300)
    assert run.deployed() == pytest.approx(4 * ROOT / (1 + ROOT), abs=1e-9)
    found = run.method.learnt(run.state, run.server)["lambda"]
    assert found.numpy() == pytest.approx(np.array([ROOT, 1]) / (1 + ROOT), abs=1e-9)


def test_a_client_whose_risk_is_always_larger_decides_alone():
    """F_1 = (w - 1)^2 / 2, F_2 = (w^2 + (w - 50)^2) / 4, which is least at 25."""
    data = clients_of([np.ones((1, 1)), np.ones((2, 1))], [np.ones(1), np.array([0.0, 50.0])])
    run = Run(Agnostic, data, deployed="last").go(250)
    assert run.state.mixture.numpy() == pytest.approx([0, 1])
    assert run.deployed() == pytest.approx(25, abs=1e-8)


@pytest.mark.parametrize("deployed", ["average", "last"])
@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_four_rounds_are_those_of_numpy(deployed, participation):
    problem = LeastSquares(participation=participation)
    steps = {"gamma_w": 0.2, "gamma_lambda": 0.3}
    run = Run(Agnostic, problem.data, deployed=deployed, **steps)
    w, mixture, p = problem.starts(run), problem.shares.copy(), 1.0
    if participation < 1:
        p = len(problem.chosen(1)) / len(problem.xs)
    passed = []
    for round in range(1, 5):
        chosen = problem.chosen(round)
        risks = np.zeros(len(mixture))
        risks[chosen] = [problem.risk(t, w) for t in chosen]
        w = w - 0.2 / p * sum(mixture[t] * problem.gradient(t, w) for t in chosen)
        mixture = nearest_in_the_simplex(mixture + 0.3 / p * risks)
        passed.append(w)
        run.go()
        assert run.state.mixture.numpy() == pytest.approx(mixture, abs=1e-12)
        expected = np.mean(passed, 0) if deployed == "average" else w
        assert run.deployed()[0] == pytest.approx(expected, abs=1e-12)
    assert (mixture == 0).any()
