"""Runs of the baselines: on any ranks, with absent, late and unseen clients, and compressed."""

from __future__ import annotations

import pytest
from commands import TINY, call
from on_ranks import SMALL, same_after_a_resume, unlike_one_rank

LATE = {"name": "stragglers", "rate": 0.6, "late": "partial"}
PLAIN = {**SMALL, "local.momentum": 0.0}
CASES = {
    "fedprox": {"algorithm": {"name": "fedprox", "mu": 0.5}, "participation": LATE},
    "scaffold": {
        "algorithm": {"name": "scaffold", "variate_option": "I", "server_lr": 0.8},
        "participation": 0.5,
        "evaluation.unseen_fraction": 0.3,
    },
    "qffl": {
        "algorithm": {"name": "qffl", "q": 2.0},
        "participation": LATE,
        "compression": "quantise",
        "evaluation.unseen_fraction": 0.3,
    },
    "agnostic": {
        "algorithm": {"name": "agnostic", "gamma_lambda": 0.5},
        "participation": 0.5,
        "compression": "rand_k",
        "evaluation.unseen_fraction": 0.3,
    },
    "mocha": {"algorithm": {"name": "mocha", "sigma_every": 2}, "participation": LATE},
}


@pytest.mark.parametrize("name", ["qffl", "agnostic"])
def test_more_coordinates_than_the_compressed_message_has_are_refused(name, tmp_path, capfd):
    """What is sent whole beside it does not count."""
    words = [*TINY, f"algorithm={name}", "compression={name: rand_k, k: 22}"]
    done = call([*words, "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and "at most the numbers in a message, 21" in done.err
    assert not (tmp_path / "run").exists()


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_files_do_not_depend_on_the_number_of_ranks(case, tmp_path):
    assert unlike_one_rank({**PLAIN, **CASES[case]}, tmp_path) == []


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_uninterrupted_one(case, tmp_path):
    assert same_after_a_resume({**PLAIN, **CASES[case]}, tmp_path, rounds=5)
