"""A few of the trials of ``trials``; docs/robustness.md holds the outcome of many."""

from __future__ import annotations

import pytest
from trials import damage, kills, ranks


def check_kills(found: dict, count: int) -> None:
    assert found["killed"] == found["equal"] == count, found
    assert found["unusable_checkpoints"] == 0, found


def test_twenty_kills_at_random_moments():
    check_kills(kills(20), 20)


@pytest.mark.slow
def test_kills_of_one_of_two_ranks():
    found = ranks(5)
    check_kills(found, 5)
    assert found["with_one_message"] == found["of_one_rank"]


def test_a_checkpoint_damaged_at_random_places():
    found = damage(200)
    assert found["cut"] == found["turned"] == 200
