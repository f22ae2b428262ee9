"""Every method ends where it aims on four problems with known optima, on any number of ranks."""

from __future__ import annotations

import pytest
from battery import ELSEWHERE, METHODS, PROBLEMS, final_gap, tolerance

from mpifed.testing import names


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_a_method_ends_where_it_aims(method, problem):
    assert final_gap(method, PROBLEMS[problem]) <= tolerance(method, PROBLEMS[problem])


def test_every_method_is_in_the_battery_or_has_a_reason():
    assert {*METHODS} | {*ELSEWHERE} == {*names("algorithms")}
    assert not {*METHODS} & {*ELSEWHERE}
