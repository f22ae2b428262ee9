"""The memory of a round is compared with what there is, by the dry run as by the run."""

from __future__ import annotations

import pytest
from commands import call


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
