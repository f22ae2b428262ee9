"""Every method ends where it aims on four problems with known optima, on any number of ranks."""

from __future__ import annotations

import pytest
from battery import ELSEWHERE, METHODS, PROBLEMS, gap, rounds_of, tolerance

from mpifed.testing import names

COMPARED = 5
"""Rounds after which digests are compared."""


def check(method: str, name: str) -> None:
    problem = PROBLEMS[name]
    rounds = rounds_of(method, problem).advance(COMPARED)
    ranks = 1 if method == "sa_ssmm" else 4
    assert rounds_of(method, problem, ranks).advance(COMPARED).digest == rounds.digest
    rounds.advance(METHODS[method].rounds - COMPARED)
    assert gap(method, problem, rounds) <= tolerance(method, problem)


@pytest.mark.parametrize("method", METHODS)
def test_a_method_ends_where_it_aims(method):
    check(method, "unlike")


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("problem", ["equal", "groups", "logistic"])
def test_a_method_ends_where_it_aims_on_other_problems(method, problem):
    check(method, problem)


def test_every_method_is_in_the_battery_or_has_a_reason():
    assert {*METHODS} | {*ELSEWHERE} == {*names("algorithms")}
    assert not {*METHODS} & {*ELSEWHERE}
