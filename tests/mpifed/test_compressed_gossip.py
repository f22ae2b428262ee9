"""Training over gossip of compressed messages, as a user runs it."""

from __future__ import annotations

import pytest
from commands import call, rows

FLIX = (
    "synthetic-fedem",
    "clients=10",
    "rounds=200",
    "dtype=float64",
    "data.n_test=10",
    "data.dimension=6",
    "evaluation.every=200",
    "exchange=gossip",
    "algorithm=flix",
    "algorithm.flix_alpha=0.5",
    "algorithm.l2=0.1",
    "algorithm.start=zeros",
    "algorithm.local_iterations=200",
    "--quiet",
)
TOP_K = ("compression=top_k", "compression.k=1")


def ends(words, target, capfd):
    """The objective's gap and the distance from consensus after the last round, and the log."""
    done = call([*FLIX, *words, "--output", target], capfd)
    assert done.code == 0, done.err
    last = rows(target)[-1]
    log = (target / "log.txt").read_text()
    return float(last["objective_gap"]), float(last["consensus_distance"]), log


@pytest.mark.slow
def test_with_the_default_step_little_is_lost_to_quantised_messages(tmp_path, capfd):
    gap, distance, log = ends([], tmp_path / "plain", capfd)
    assert "consensus step" not in log
    lossy_gap, lossy_distance, log = ends(["compression=quantise"], tmp_path / "lossy", capfd)
    assert lossy_gap <= 3 * gap and lossy_distance <= 3 * distance
    assert "consensus step" in log and "the best proven" in log and "warning" not in log
    paper = ["compression=quantise", "exchange.consensus_step=paper"]
    cautious_gap, cautious_distance, log = ends(paper, tmp_path / "paper", capfd)
    assert cautious_gap > 3 * gap and cautious_distance > 3 * distance
    assert "that of the paper's theorem" in log


def test_a_step_too_small_for_the_rounds_is_warned_of(tmp_path, capfd):
    words = [*FLIX, *TOP_K, "--output", tmp_path / "run"]
    warning = "warning: the run has 200 rounds, and its clients may need"
    for more in ([], ["exchange.consensus_step=paper"], ["exchange.consensus_step=1e-9"]):
        dry = call([*words, *more, "--dry-run"], capfd)
        assert dry.code == 0, dry.err
        assert warning in dry.out and "larger exchange.consensus_step" in dry.out
    for more in ("rounds=1000000", "exchange.consensus_step=0.5"):
        dry = call([*words, more, "--dry-run"], capfd)
        assert "consensus step" in dry.out and "warning" not in dry.out
    assert warning in ends(TOP_K, tmp_path / "run", capfd)[2]


@pytest.mark.parametrize("option", ["drop_nodes=0.2", "drop_edges=0.3", "local_rounds=2"])
def test_replicas_need_every_message_of_every_round(option, tmp_path, capfd):
    schedule = ["exchange.schedule.name=static", f"exchange.schedule.{option}"]
    words = [*FLIX, *schedule, "--output", tmp_path / "run", "--dry-run"]
    assert call(words, capfd).code == 0
    done = call([*words, *TOP_K], capfd)
    assert done.code == 2
    assert f"exchange.schedule.{option.replace('=', ' is ')}" in done.err
