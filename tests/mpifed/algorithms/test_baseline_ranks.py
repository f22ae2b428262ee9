"""Runs of the baselines are the same on any ranks where clients are absent, late or unseen."""

from __future__ import annotations

import pytest
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


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_files_do_not_depend_on_the_number_of_ranks(case, tmp_path):
    assert unlike_one_rank({**PLAIN, **CASES[case]}, tmp_path) == []


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_uninterrupted_one(case, tmp_path):
    assert same_after_a_resume({**PLAIN, **CASES[case]}, tmp_path, rounds=5)
