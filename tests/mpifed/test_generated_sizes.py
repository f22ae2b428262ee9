"""Options that neither memory nor int64 holds: refused with the field, before anything is made."""

from __future__ import annotations

import pytest
from commands import TINY, call
from test_bad_input import refused

T, WIDEST, BEYOND = 10**12, 2**63 - 1, 10**20

TUNED = [*TINY, "algorithm=fedavg_ft"]

STEPS = [
    (TINY, [f"local.steps={T}"], "local.steps.* 1000000000000.* memory"),
    (TINY, [f"local.epochs={T}"], "local.epochs.* 1000000000000.* memory"),
    (TUNED, [f"algorithm.tune_epochs={T}"], "algorithm.tune_epochs.* 1000000000000.* memory"),
]


@pytest.mark.parametrize(
    ("words", "changes", "expected"), STEPS, ids=[" ".join(case[1]) for case in STEPS]
)
def test_what_no_memory_holds_is_refused_with_its_field(words, changes, expected, tmp_path, capfd):
    outcome = call([*words, *changes, "--output", tmp_path / "run"], capfd)
    refused(outcome, expected, tmp_path / "run")


def test_minibatches_larger_than_any_shard_hold_all_of_it(tmp_path, capfd):
    runs = [
        [*TINY, "--output", tmp_path / str(size), f"local.batch_size={size}"]
        for size in (WIDEST, 2000)
    ]
    assert [call(words, capfd).code for words in runs] == [0, 0]
    one, other = ((words[-2] / "metrics.csv").read_text().splitlines() for words in runs)
    assert [line.split(",")[2:] for line in one] == [line.split(",")[2:] for line in other]


NAME = "x" * 5000
