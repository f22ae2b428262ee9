"""What hosts send each other: bytes on the wire."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from rig import HERE

sys.path.insert(0, str(Path(HERE).parents[1] / "scripts" / "benchmarks"))
import bench_hosts as bench

pytestmark = [pytest.mark.hosts, pytest.mark.usefixtures("hosts")]


def test_a_sum_sends_what_it_says_and_no_more_than_is_needed(tmp_path):
    found = bench.rounds_of(2, 2, bench.words_of("server", tmp_path), "unlimited", 3)
    assert found["mpi"] <= found["wire"] <= 1.15 * found["mpi"]
    found = bench.rounds_of(2, 4, bench.words_of("server", tmp_path), "unlimited", 3)
    assert found["wire"] <= 1.15 * 3 * 2 * bench.MODEL
