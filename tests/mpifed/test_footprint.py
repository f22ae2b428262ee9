"""The memory of a round is compared with what there is, by the dry run as by the run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from commands import call

from mpifed.local.optimizers import RULES, unwritten
from mpifed.local.options import LocalOptions

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
    rule = RULES[optimizer](options)
    moments = rule.moments(rule.init(64, 1, PAGES // 64, torch.zeros(0)))
    assert all(moment.shape == (64, 1, PAGES // 64) for moment in moments)
    assert resident() - before < PAGES * 4 / 16
    moments[0][:16] = 1
    assert resident() - before < PAGES * 4 / 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unwritten_zeros_are_zeros(dtype):
    found = unwritten(torch.ones(0, dtype=dtype), 3, 0, 5)
    assert (found.shape, found.dtype) == ((3, 0, 5), dtype)
    assert np.array_equal(unwritten(torch.ones(0, dtype=dtype), 2, 3), np.zeros((2, 3)))


@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_messages_that_cannot_be_held_are_refused_by_both_in_the_same_words(
    exchange, tmp_path, capfd
):
    words = [
        "clients=10",
        f"exchange={exchange}",
        "algorithm.n_components=1000000000",
        "--output",
        tmp_path / "run",
    ]
    dry, wet = call([*words, "--dry-run"], capfd), call(words, capfd)
    (line,) = dry.err.splitlines()
    assert line == wet.err.strip()
    assert "algorithm fedem has 151000000000 numbers in a client's message and 10 clients" in line
    assert (dry.code, wet.code) == (2, 2)
    assert not (tmp_path / "run").exists()
