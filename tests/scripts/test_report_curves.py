"""Curves of reports: means over seeds, and differences seed by seed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from run_directories import write_run
from scipy import stats

from mpifed.report.groups import Group, difference, group_runs, last_differences
from mpifed.report.runs import find_runs

PEER = {"name": "gossip", "topology": {"name": "ring"}}


def groups_in(folder: Path) -> list[Group]:
    return group_runs(find_runs([folder]))[0]


def test_seeds_become_mean_and_deviation_of_a_curve(tmp_path: Path) -> None:
    for seed, final in enumerate((0.74, 0.76, 0.78)):
        write_run(tmp_path / f"a{seed}", final=final, seed=seed)
    (group,) = groups_in(tmp_path)
    curve = group.curve("test_accuracy", 100)
    assert curve.rounds.tolist() == [0, 10, 20, 30, 40]
    assert curve.mean == pytest.approx(76 - 25 * np.exp(-curve.rounds / 12))
    assert curve.deviation == pytest.approx(np.full(5, 2.0))


@pytest.mark.parametrize("spread", ["ci", "sd", "se"])
def test_the_band_is_the_spread_that_tables_have(spread: str, tmp_path: Path) -> None:
    for seed, final in enumerate((0.74, 0.76, 0.78)):
        write_run(tmp_path / f"a{seed}", final=final, seed=seed)
    (group,) = groups_in(tmp_path)
    group = replace(group, spread=spread)
    half = {"ci": stats.t.ppf(0.975, 2) * 2 / 3**0.5, "sd": 2.0, "se": 2 / 3**0.5}[spread]
    assert group.curve("test_accuracy", 100).band == pytest.approx(np.full(5, half))
    assert group.estimate("test_accuracy", 100).shown == pytest.approx(half)


def test_differences_are_taken_seed_by_seed(tmp_path: Path) -> None:
    """FedEM at 0.7, 0.8 and 0.75, gossip above it by 2 and 3 points on two of the seeds."""
    for seed, final in enumerate((0.7, 0.8, 0.75)):
        write_run(tmp_path / f"a{seed}", final=final, seed=seed)
    for seed, final in ((1, 0.82), (2, 0.78)):
        write_run(tmp_path / f"b{seed}", final=final, seed=seed, exchange=PEER, bits=5e5)
    server, peer = groups_in(tmp_path)
    curve = difference(peer, server, "test_accuracy", 100)
    assert curve.rounds.tolist() == [0, 10, 20, 30, 40]
    assert curve.mean == pytest.approx(np.full(5, 2.5))
    assert curve.deviation == pytest.approx(np.full(5, np.sqrt(0.5)))
    assert curve.bits == pytest.approx(5e5 * curve.rounds)  # a message of gossip counts once
    assert last_differences(peer, server, "test_accuracy_p10") == pytest.approx([0.02, 0.03])
    assert last_differences(server, server, "test_accuracy").tolist() == [0, 0, 0]


def test_runs_without_a_common_seed_have_no_difference(tmp_path: Path) -> None:
    write_run(tmp_path / "a", seed=0)
    write_run(tmp_path / "b", seed=1, exchange=PEER)
    server, peer = groups_in(tmp_path)
    assert not len(difference(peer, server, "test_accuracy").rounds)
    assert not len(last_differences(peer, server, "test_accuracy"))
