"""Clients that drop out, come back or are late: schedules against their closed forms."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from commands import TINY, call, rows, summary_of
from hypothesis import given, settings
from hypothesis import strategies as st
from on_ranks import unlike_one_rank

from mpifed.algorithms.global_model.local import LocalState
from mpifed.components.registry import plain
from mpifed.config.experiments import parse_overrides
from mpifed.federation.participation import (
    Dropout,
    Stragglers,
    _uniform,
    efforts,
    inclusion,
    present,
)
from mpifed.local.minibatches import work_of
from mpifed.local.optimizers import SgdState
from mpifed.state import merge

RATES = st.floats(0, 0.9)
RECOVERIES = st.floats(0.02, 1)


def dropout(rate, recovery):
    return Dropout(rate=rate, recovery=recovery)


def stragglers(rate, late="miss"):
    return Stragglers(rate=rate, late=late)


def history(participation, n=400, rounds=300, seed=0):
    """bool (rounds, n)."""
    ids = np.arange(n)
    return np.array([present(participation, ids, n, seed, k) for k in range(1, rounds + 1)])


@pytest.mark.parametrize(("rate", "recovery"), [(0.1, 0.3), (0.7, 0.6), (0.02, 0.1), (0.5, 0.5)])
def test_clients_leave_and_come_back_at_their_rates(rate, recovery):
    there = history(dropout(rate, recovery))
    before, after = there[:-1], there[1:]
    # Four standard deviations of the estimated frequencies.
    for condition, outcome, p in ((before, ~after, rate), (~before, after, recovery)):
        count = condition.sum()
        assert abs((condition & outcome).sum() / count - p) < 4 * np.sqrt(p * (1 - p) / count)
    # Stationary from the first round: among many clients, the share of those that are there.
    share = recovery / (rate + recovery)
    everyone = present(dropout(rate, recovery), np.arange(20000), 20000, 1, 1)
    assert abs(everyone.mean() - share) < 4 * np.sqrt(share * (1 - share) / 20000)
    assert inclusion(dropout(rate, recovery), 400) == share


@settings(deadline=None, max_examples=30, derandomize=True)
@given(RATES, RECOVERIES, st.integers(0, 99), st.integers(1, 500))
def test_a_client_s_schedule_depends_on_nobody_else(rate, recovery, seed, round):
    """Each one alone, in one walk with others, and step by step forwards from far back."""
    participation = dropout(rate, recovery)
    together = present(participation, np.arange(40), 40, seed, round)
    some = np.array([3, 17, 39])
    alone = present(participation, some, 40, seed, round)
    assert (together[some] == alone[some]).all()
    assert alone.sum() <= 3


@pytest.mark.parametrize(("rate", "recovery"), [(0.1, 0.3), (0.8, 0.7)])
def test_coupling_from_the_past_is_the_chain_run_forwards(rate, recovery):
    """A chain that starts far back from either state ends in what the walk back finds."""
    ids = np.arange(50)
    found = present(dropout(rate, recovery), ids, 50, 3, 20)
    for start in (True, False):
        there = np.full(50, start)
        for k in range(-400, 21):
            u = _uniform(3, "dropout", k, ids)
            there = np.where(there, u >= rate, u >= 1 - recovery)
        assert (there == found).all()


def test_late_clients_miss_rounds_at_their_rate():
    there = history(stragglers(0.3))
    assert abs(there.mean() - 0.7) < 4 * np.sqrt(0.21 / there.size)
    assert efforts(stragglers(0.3), np.arange(5), 0, 1) is None
    assert inclusion(stragglers(0.3), 5) == 0.7


def test_late_clients_do_a_uniform_part():
    participation = stragglers(0.4, "partial")
    assert history(participation, rounds=3).all()
    drawn = np.array([efforts(participation, np.arange(500), 2, k) for k in range(1, 101)])
    assert drawn.min() > 0 and drawn.max() == 1
    late = drawn[drawn < 1]
    assert abs(len(late) / drawn.size - 0.4) < 4 * np.sqrt(0.24 / drawn.size)
    assert np.abs(np.quantile(late, [0.25, 0.5, 0.75]) - [0.25, 0.5, 0.75]).max() < 0.02
    # The share is the client's own, whoever is asked for.
    assert (efforts(participation, np.array([7, 9]), 2, 1) == drawn[0, [7, 9]]).all()


@given(st.lists(st.integers(1, 500), min_size=1, max_size=9), st.integers(1, 64), st.data())
def test_a_part_of_the_steps_is_at_least_one_and_at_most_all(sizes, batch, data):
    work = work_of(np.array(sizes), batch, data.draw(st.integers(1, 3)), None)
    effort = np.array([data.draw(st.floats(1e-6, 1)) for _ in sizes])
    short = work.shortened(effort)
    assert (short.steps >= 1).all() and (short.steps <= work.steps).all()
    assert (short.steps >= effort * work.steps).all()
    assert (work.shortened(np.ones(len(sizes))).steps == work.steps).all()


DROPOUT = "{name: dropout, rate: 0.4, recovery: 0.5}"
MISSING = "{name: stragglers, rate: 0.5}"
PARTIAL = "{name: stragglers, rate: 0.7, late: partial}"


@pytest.mark.parametrize(
    ("participation", "exchange"),
    [
        (DROPOUT, "gossip"),
        (MISSING, "server"),
        (PARTIAL, "gossip"),
        pytest.param(DROPOUT, "server", marks=pytest.mark.slow),
        pytest.param(MISSING, "gossip", marks=pytest.mark.slow),
        pytest.param(PARTIAL, "server", marks=pytest.mark.slow),
    ],
)
def test_unreliable_runs_resume_as_if_uninterrupted(participation, exchange, tmp_path, capfd):
    words = [*TINY, f"participation={participation}", f"exchange={exchange}", "--quiet"]
    words += ["clients=7", "local.batch_size=16", "--output"]
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    assert call([*words, whole, "rounds=6"], capfd).code == 0
    assert call([*words, cut, "rounds=4"], capfd).code == 0
    assert call([*words, cut, "rounds=6", "--resume"], capfd).code == 0
    assert rows(whole) == rows(cut)
    active = {row["active_clients"] for row in rows(whole)[1:]}
    assert ("partial" in participation) == (active == {"7"})
    reliable = tmp_path / "reliable"
    plain = [word for word in words if not word.startswith("participation")]
    assert call([*plain, reliable, "rounds=6"], capfd).code == 0
    assert summary_of(reliable)["state_digest"] != summary_of(whole)["state_digest"]


@pytest.mark.parametrize(
    "words",
    [
        ["algorithm.name=fedem", "local.momentum=0.9"],
        ["algorithm.name=local", "local.momentum=0.9"],
        ["algorithm.name=fedavg", "compression=top_k"],
        ["exchange=gossip"],
    ],
)
def test_rows_written_in_place_are_those_of_a_copy(words, tmp_path, capfd):
    """A run that may leave out clients that diverge keeps the state before each round."""
    common = [*TINY, *words, "participation={name: bernoulli, p: 0.7}", "clients=4", "rounds=12"]
    common += ["evaluation.every=1", "--quiet", "on_divergence=stop", "--output", tmp_path / "stop"]
    assert call(common, capfd).code == 0
    assert (
        call([*common[:-3], "on_divergence=drop", "--output", tmp_path / "drop"], capfd).code == 0
    )
    assert rows(tmp_path / "stop") == rows(tmp_path / "drop")
    assert {"4", "3"} <= {row["active_clients"] for row in rows(tmp_path / "stop")[1:]}


def test_a_merge_overwrites_only_what_it_may():
    whole = LocalState(torch.zeros(3, 2), SgdState(torch.zeros(3, 1), torch.zeros(3)))
    part = LocalState(torch.ones(1, 2), SgdState(torch.ones(1, 1), torch.ones(1)))
    at = torch.tensor([1])
    first = merge(whole, part, at, False)
    again = merge(first, part, at + 1, False, [first.models])
    assert not whole.models.any() and not whole.optimizer.epochs.any()
    assert again.models is first.models
    assert again.models.tolist() == [[0, 0], [1, 1], [1, 1]]
    assert first.optimizer.epochs.tolist() == [0, 1, 0]
    assert again.optimizer.epochs.tolist() == [0, 1, 1]


def test_partial_work_needs_local_steps(tmp_path, capfd):
    words = ["algorithm=user_components:Stepless", "participation={name: stragglers, rate: 0.5, "]
    words[1] += "late: partial}"
    outcome = call([*TINY, *words, "--output", tmp_path / "run"], capfd)
    assert outcome.code == 2
    assert "algorithm is 'user_components:Stepless'" in outcome.err


def test_fedadam_lets_late_clients_send_a_part_of_their_steps(tmp_path, capfd):
    words = [*TINY, "algorithm=fedadam", "local.epochs=3", "--quiet"]
    digests = []
    for rate in (None, 0, 0.9):
        late = [] if rate is None else [f"participation={plain(stragglers(rate, 'partial'))}"]
        output = tmp_path / f"run-{rate}"
        assert call([*words, *late, "--output", output], capfd).code == 0
        digests.append(summary_of(output)["state_digest"])
    assert digests[0] == digests[1] != digests[2]


@pytest.mark.mpi
@pytest.mark.parametrize("exchange", ["server", "gossip"])
@pytest.mark.parametrize("late", ["miss", "partial"])
def test_ranks_agree_on_who_is_late(exchange, late, tmp_path):
    overrides = {
        **parse_overrides(TINY[1:]),
        "clients": 9,
        "local.batch_size": 16,
        "exchange": exchange,
        "participation": plain(stragglers(0.6, late)),
    }
    assert unlike_one_rank(overrides, tmp_path) == []
