"""A few of the trials of ``trials``; docs/robustness.md holds the outcome of many."""

from __future__ import annotations

import time

import pytest
from commands import family, started
from trials import ranks


@pytest.mark.slow
def test_kills_of_one_of_two_ranks():
    found = ranks(2)
    assert found["killed"] == found["equal"] == 2, found
    assert found["unusable_checkpoints"] == 0, found
    assert found["with_one_message"] == found["of_one_rank"]


def test_a_test_that_fails_leaves_no_process_behind():
    job = []
    with (
        pytest.raises(AssertionError, match="as here"),
        started(["bash", "-c", "sleep 600 & sleep 600; true"]) as process,
    ):
        while len(job) < 3:
            time.sleep(0.01)
            job = family(process.pid)
        raise AssertionError("as here")
    assert not any(map(family, job))
