import json

import numpy as np
import pytest

from mpifed.testing import run_command
from topologies import build_schedule, communication

LINKS = ["--latency", 0.25, "--bandwidth", 8e6, "--message-bytes", 1e6]


@pytest.fixture
def rank(capsys):
    """The records that the command ranks, the best first."""

    def run(n, *words):
        capsys.readouterr()
        assert run_command(["topologies", "rank", *words, "--n", n, "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run


def test_a_degree_is_kept_and_the_best_comes_first(rank):
    found = rank(12, *LINKS, "--budget", "degree=3")
    assert max(record["degree"] for record in found) <= 3
    rounds = [record["rounds"] for record in found]
    assert rounds == sorted(rounds)
    assert len(found) > 15
    assert found[0]["label"] == "base_k:n=12,peers=3"
    by_bytes = rank(12, *LINKS, "--budget", "degree=3", "--by", "bytes")
    assert by_bytes[0]["bytes"] == min(record["bytes"] for record in found)
    limit = by_bytes[3]["bytes"]
    fewer = rank(12, *LINKS, "--budget", "degree=3", f"bytes={limit}")
    assert {record["label"] for record in fewer} >= {record["label"] for record in by_bytes[:4]}
    assert all(record["bytes"] <= limit for record in fewer)


def test_the_numbers_of_an_exact_schedule(rank):
    (found,) = rank(8, "one_peer_exponential:n=8", *LINKS, "--compute", 0.5)
    assert found["contraction"] == 0
    assert (found["rounds"], found["messages"], found["bytes"]) == (3, 24, 24e6)
    assert found["seconds"] == pytest.approx(3 * (0.5 + 0.25 + 1))
    # A link is shared: the complete graph is no longer first by seconds.
    both = ["complete", "one_peer_exponential:n=8", *LINKS, "--by", "seconds"]
    shared = rank(8, *both)
    assert [record["seconds"] for record in shared] == pytest.approx([3 * 1.25, 0.25 + 7])
    free = rank(8, *both, "--link", "per_path")
    assert free[0]["label"].startswith("complete") and free[0]["seconds"] == pytest.approx(1.25)


def test_a_round_that_moves_the_mean_is_told(rank):
    (found,) = rank(8, "epidemic:n=8")
    assert not found["keeps_mean"]


@pytest.mark.parametrize("accuracy", [0.5, 1e-3, 1e-30])
def test_seconds_of_many_rounds_are_those_of_the_clock(accuracy, rank):
    (found,) = rank(12, "equitopo:n=12", *LINKS, "--compute", 0.5, "--accuracy", accuracy)
    degree = communication(build_schedule("equitopo", 12)).most_messages
    assert found["seconds"] == pytest.approx(found["rounds"] * (0.5 + 0.25 + degree))


@pytest.mark.parametrize("n", [2, 3, 10])
def test_every_candidate_can_be_built(n, rank):
    every = rank(n)
    assert np.isfinite([record["seconds"] for record in every]).all()
    assert len({record["label"] for record in every}) == len(every)


def test_the_command_ranks_given_candidates(tmp_path, rank):
    graphs = ["ring", "complete", "one_peer_exponential:n=8"]
    records = rank(8, *graphs, "--by", "messages", "--csv", tmp_path / "out.csv")
    assert [record["label"].split(":")[0] for record in records] == [
        "one_peer_exponential",
        "complete · fmmc",
        "ring · fmmc",
    ]
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 4


def test_a_budget_takes_each_key_once(capsys):
    words = ["topologies", "rank", "--n", 4, "--budget", "degree=3", "degree=4"]
    assert run_command(words) == 2
    assert "degree" in capsys.readouterr().err
