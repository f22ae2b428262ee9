"""What hosts send each other, and when: bytes on the wire, and the simulated clock beside them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rig import HERE

sys.path.insert(0, str(Path(HERE).parents[1] / "scripts"))
import bench_hosts as bench

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("hosts")]


def test_a_sum_sends_what_it_says_and_no_more_than_is_needed(tmp_path):
    found = bench.rounds_of(2, 2, bench.words_of("server", tmp_path), "unlimited", 3)
    assert found["mpi"] <= found["wire"] <= 1.15 * found["mpi"]
    found = bench.rounds_of(2, 4, bench.words_of("server", tmp_path), "unlimited", 3)
    assert found["wire"] <= 1.15 * 3 * 2 * bench.MODEL


@pytest.mark.parametrize("kind", ["ring", "star"])
def test_rounds_take_as_long_as_the_simulated_clock_says(kind, tmp_path):
    words = (*bench.words_of(kind, tmp_path), *bench.network(kind, 40))
    found = bench.measured(4, 4, words, "40mbit", 3)
    # others may use the cores of this machine
    assert 0.75 <= found["simulated"] / (found["wall"] - found["evaluation"]) <= 1.15
