"""What a user's own model does wrongly after it was made is one sentence with its key and place."""

from __future__ import annotations

import sys
import textwrap

import pytest
from commands import call

WORDS = ("digits-fedem", "algorithm=fedavg", "clients=6", "rounds=1", "model=nets:Net")
MODULE = """
import torch
from torch import nn

SEEN = []


class Net(nn.Module):
    def __init__(self, data):
        super().__init__()
        self.layer = nn.Linear(64, 10)

    def forward(self, x):
        {body}
        return self.layer(x.flatten(1))
"""


@pytest.fixture
def nets(tmp_path, monkeypatch, capfd):
    """Runs the command with a user's file ``nets.py``; returns what came of it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)

    def started(source, *words):
        (tmp_path / "nets.py").write_text(textwrap.dedent(source))
        sys.modules.pop("nets", None)
        return call([*WORDS, *words, "--output", "out"], capfd)

    yield started
    sys.modules.pop("nets", None)


def test_a_model_that_fails_for_large_batches_ends_the_run_with_its_place(nets, tmp_path):
    outcome = nets(MODULE.format(body="if len(x) > 64: raise RuntimeError('too big a batch')"))
    assert outcome.code == 1
    assert "mpifed: model 'nets:Net', round 0: RuntimeError: too big a batch" in outcome.err
    assert 'nets.py", line 14, in forward' in outcome.err
    assert not (tmp_path / "out" / "DONE").exists()
