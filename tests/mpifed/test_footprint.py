"""The memory of a round is compared with what there is, by the dry run as by the run."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from on_ranks import SMALL, run

from mpifed.local.optimizers import unwritten
from mpifed.local.options import LocalOptions
from mpifed.local.solver import RULES
from mpifed.models.mlp import Mlp
from mpifed.training.run_directory import Recorder

PAGES = 1 << 26
"""Numbers of a state that is measured, 256 MiB."""


def resident() -> int:
    """Bytes of this process that are not shared with files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("RssAnon:"))
    return int(found) * 1024


@pytest.mark.parametrize("optimizer", RULES)
def test_moments_take_no_memory_before_a_client_steps(optimizer):
    options = LocalOptions(optimizer=optimizer, momentum=0.9 if optimizer == "sgd" else 0.0)
    before = resident()
    rule = RULES[optimizer](options, Mlp((3, 4, 2)))
    moments = rule.moments(rule.init(64, 1, PAGES // 64, torch.zeros(0)))
    assert all(moment.shape == (64, 1, PAGES // 64) for moment in moments)
    assert resident() - before < PAGES * 4 / 16
    moments[0][:16] = 1
    assert resident() - before < PAGES * 4 / 2


def test_rows_that_are_on_disk_are_not_kept_in_memory(tmp_path):
    recorder = Recorder(tmp_path / "run", {}, "")
    recorder.begin(["round", "train_loss"], [["0", "2.5"]], int, True)
    tracemalloc.start()
    for round in range(1, 1001):
        recorder.row({"round": round, "train_loss": 1 / round})
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    recorder.close()
    assert grown < 1e4
    lines = ["round,train_loss", "0,2.5", *(f"{k},{1 / k!r}" for k in range(1, 1001))]
    tracemalloc.start()
    text = recorder.metrics
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert text.splitlines() == lines and most < 10 * len(text)


def test_a_checkpoint_takes_little_for_a_recorded_round(tmp_path):
    options = {**SMALL, "rounds": 60, "evaluation.every": 1, "checkpoint.every": 10}
    run("synthetic-fedem", {**options, "checkpoint.keep": 6}, tmp_path / "run")
    folder = tmp_path / "run" / "checkpoints"
    first, last = ((folder / f"round-{at:06d}.h5").stat().st_size for at in (10, 60))
    of_a_row = (tmp_path / "run" / "metrics.csv").stat().st_size / 61
    assert last - first < 50 * of_a_row


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unwritten_zeros_are_zeros(dtype):
    found = unwritten(torch.ones(0, dtype=dtype), 3, 0, 5)
    assert (found.shape, found.dtype) == ((3, 0, 5), dtype)
    assert np.array_equal(unwritten(torch.ones(0, dtype=dtype), 2, 3), np.zeros((2, 3)))
