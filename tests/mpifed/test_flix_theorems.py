"""What FLIX's theorems allow: steps, rounds and coefficients, in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from mpifed.algorithms.flix import theorems as theory


def test_the_budget_rules_of_theorem_two():
    c = theory.constants(np.full(2, 0.5), np.array([4.0, 3.0]), 1.0)
    variance, accuracy = 1.224489796, 1e-3
    assert theory.one_shot_alpha(c, variance, accuracy) == pytest.approx(0.0216024690, rel=1e-8)
    wanted = {0.0: 0, 0.5: 20, 1.0: 24, 0.02160: 1}
    for alpha, rounds in wanted.items():
        assert theory.communications(c, variance, accuracy, alpha) == rounds
    for rounds in range(1, 24):
        most = theory.affordable_alpha(c, variance, accuracy, rounds)
        assert theory.communications(c, variance, accuracy, most * (1 - 1e-9)) <= rounds
        if most < 1:
            assert theory.communications(c, variance, accuracy, most * (1 + 1e-6)) == rounds + 1
    assert theory.affordable_alpha(c, variance, accuracy, 0) == 0


@pytest.mark.parametrize("smooth", [1.0, 1 - 2**-53])
def test_where_mu_is_l_one_step_finds_the_minimiser(smooth):
    """Also where rounding makes L the smaller."""
    c = theory.constants(np.full(2, 0.5), np.full(2, smooth), 1.0)
    variance, accuracy = 1.0, 1e-6
    first = theory.one_shot_alpha(c, variance, accuracy)
    assert [theory.affordable_alpha(c, variance, accuracy, r) for r in (0, 1, 2, 9)] == [
        0,
        first,
        1,
        1,
    ]
    assert theory.communications(c, variance, accuracy, first) == 1
    assert theory.communications(c, variance, accuracy, 1.0) == 2


def test_any_number_of_rounds_affords_at_most_one():
    c = theory.constants(np.full(2, 0.5), np.full(2, 1.0), 0.999)
    found = [theory.affordable_alpha(c, 1.0, 1e-6, rounds) for rounds in (1, 2, 5, 10_000, 10**20)]
    assert found == sorted(found) and found[-3:] == [1.0] * 3


def test_equal_alphas_give_the_step_of_the_corollaries():
    smooth, omega, alpha = np.array([1.0, 2.0, 6.0]), 3.0, 0.5
    c = theory.constants(np.full(3, alpha), smooth, 0.1, omega, 1 / (1 + omega))
    expected = 1 / (alpha**2 * (3.0 + 6 * omega * 6.0 / 3))
    assert theory.diana_step(c, "strongly_convex") == pytest.approx(expected, rel=1e-14)
    assert theory.diana_step(c, "convex") == pytest.approx(expected / 4, rel=1e-14)
    expected = 1 / (alpha**2 * (3.0 + 2 * omega * 6.0 / 3))
    assert theory.dcgd_step(c, "strongly_convex") == pytest.approx(expected, rel=1e-14)
