"""Networks have the same numbers on any number of ranks and after any resume."""

from __future__ import annotations

import pytest
from on_ranks import same_after_a_resume, unlike_one_rank

SMALL = {
    "clients": 5,
    "checkpoint.every": 2,
    "rounds": 4,
    "local.batch_size": 16,
    "local.momentum": 0.0,
}
CASES = {
    "cnn": {"model.name": "network_modules:cnn"},
    "stacked": {"model.name": "network_modules:cnn", "local.stepping": "stacked"},
    "batch normalisation": {"model.name": "network_modules:cnn", "model.norm": True},
    "local buffers": {
        "model.name": "network_modules:cnn",
        "model.norm": True,
        "local.buffers": "local",
        "participation": 0.6,
    },
    "dropout by gossip": {
        "model.name": "network_modules:cnn",
        "model.dropout": 0.3,
        "exchange": "gossip",
    },
    "lstm, adam": {
        "model.name": "network_modules:lstm",
        "local.optimizer": "adam",
        "local.lr": 0.01,
        "participation": 0.6,
    },
}


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_files_do_not_depend_on_the_number_of_ranks(case, tmp_path):
    assert unlike_one_rank({**SMALL, **CASES[case]}, tmp_path, "digits-fedem") == []


@pytest.mark.mpi
@pytest.mark.parametrize("case", ["batch normalisation", "local buffers", "lstm, adam"])
def test_a_resumed_run_is_the_uninterrupted_one(case, tmp_path):
    assert same_after_a_resume({**SMALL, **CASES[case]}, tmp_path, "digits-fedem", rounds=4)
