import json

import numpy as np
import pytest

from topologies import TopologyError, build_schedule
from topologies.__main__ import main
from topologies.analysis.cases import build_case, parse_case
from topologies.analysis.consensus import communication
from topologies.analysis.ranking import candidates, measure, rank, read_budget, seconds_of
from topologies.links.network import one_site

LINKS = one_site(12, latency=0.25, bandwidth=8e6)


def test_a_degree_is_kept_and_the_best_comes_first():
    plans = candidates(12, 3)
    found = rank(plans, LINKS, {"degree": 3}, message_bytes=1e6)
    assert max(record["degree"] for record in found) <= 3
    rounds = [record["rounds"] for record in found]
    assert rounds == sorted(rounds)
    assert len(found) > 15
    assert found[0]["label"] == "base_k:n=12,peers=3"
    by_bytes = rank(plans, LINKS, {"degree": 3}, by="bytes", message_bytes=1e6)
    assert by_bytes[0]["bytes"] == min(record["bytes"] for record in found)
    limit = by_bytes[3]["bytes"]
    fewer = rank(plans, LINKS, {"bytes": limit}, message_bytes=1e6)
    assert {record["label"] for record in fewer} >= {record["label"] for record in by_bytes[:4]}
    assert all(record["bytes"] <= limit for record in fewer)


def test_the_numbers_of_an_exact_schedule():
    case = build_case(parse_case("one_peer_exponential:n=8", "fmmc", "static", None), 0)
    found = measure(case, one_site(8, 0.25, 8e6), 0.5, 1e6, 1e-3)
    assert found["contraction"] == 0
    assert (found["rounds"], found["messages"], found["bytes"]) == (3, 24, 24e6)
    assert found["seconds"] == pytest.approx(3 * (0.5 + 0.25 + 1))
    # A link is shared: the complete graph is no longer first by seconds.
    both = [
        parse_case(name, "fmmc", "static", 8) for name in ("complete", "one_peer_exponential:n=8")
    ]
    first = rank(both, one_site(8, 0.25, 8e6), {}, by="seconds", message_bytes=1e6)
    assert [record["seconds"] for record in first] == pytest.approx([3 * 1.25, 0.25 + 7])
    free = rank(both, one_site(8, 0.25, 8e6, shared=False), {}, by="seconds", message_bytes=1e6)
    assert free[0]["label"].startswith("complete") and free[0]["seconds"] == pytest.approx(1.25)


def test_a_round_that_moves_the_mean_is_told():
    case = build_case(parse_case("epidemic:n=8", "fmmc", "static", None), 0)
    assert not measure(case, one_site(8), 0.0, 1.0, 1e-3)["keeps_mean"]


@pytest.mark.parametrize("rounds", [0, 7, 100, 1000])
def test_seconds_of_many_rounds_are_those_of_the_clock(rounds):
    schedule = build_schedule("equitopo", 12)
    seconds = seconds_of(schedule, LINKS, 0.5, 1e6, rounds)
    degree = communication(schedule).most_messages
    assert seconds == pytest.approx(rounds * (0.5 + 0.25 + degree))


@pytest.mark.parametrize("n", [2, 3, 10])
def test_every_candidate_can_be_built(n):
    every = rank(candidates(n), one_site(n), {})
    assert np.isfinite([record["seconds"] for record in every]).all()
    assert len({record["label"] for record in every}) == len(every)


def test_the_command_ranks_given_candidates(tmp_path, capsys):
    graphs = ["ring", "complete", "one_peer_exponential:n=8"]
    words = ["--n", "8", "--by", "messages", "--csv", str(tmp_path / "out.csv")]
    assert main(["rank", *graphs, *words, "--json"]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [record["label"].split(":")[0] for record in records] == [
        "one_peer_exponential",
        "complete · fmmc",
        "ring · fmmc",
    ]
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 4


def test_read_budget_takes_each_key_once():
    with pytest.raises(TopologyError, match="given twice"):
        read_budget(["degree=3", "degree=4"])
