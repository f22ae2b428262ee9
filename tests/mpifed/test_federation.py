"""The federation: blocks of clients on ranks, participation, and streams of random numbers."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest
import torch
from commands import TINY, call, rows, summary_of
from hypothesis import given, settings
from hypothesis import strategies as st
from on_ranks import SMALL, unlike_one_rank

from mpifed import random
from mpifed.algorithms.global_model.local import LocalState
from mpifed.components.registry import plain
from mpifed.config.configuration import resolve
from mpifed.config.experiments import parse_overrides
from mpifed.data.base import Description
from mpifed.federation.federation import Federation, draw_unseen, participants
from mpifed.federation.participation import (
    Bernoulli,
    Dropout,
    Stragglers,
    _uniform,
    efforts,
    inclusion,
    present,
)
from mpifed.federation.placement import balanced_owners, contiguous_owners
from mpifed.local.minibatches import work_of
from mpifed.local.optimizers import SgdState
from mpifed.mpi.communicator import Alone
from mpifed.state import merge
from mpifed.testing.ranks import played
from mpifed.testing.rounds import Listed
from mpifed.training.build import make, samples_of_steps


def least_largest(work, blocks):
    """The least largest block of any cut into ``blocks`` non-empty blocks, by trying all."""
    n = len(work)
    cuts = itertools.combinations(range(1, n), blocks - 1)
    return min(max(sum(work[a:b]) for a, b in itertools.pairwise([0, *cut, n])) for cut in cuts)


@given(st.lists(st.integers(1, 50), min_size=1, max_size=9), st.integers(1, 12))
def test_blocks_are_contiguous_non_empty_and_balanced(work, ranks):
    work = np.array(work, float)
    owner = contiguous_owners(work, ranks)
    blocks = min(ranks, len(work))
    assert np.array_equal(np.unique(owner), np.arange(blocks))
    assert (np.diff(owner) >= 0).all()
    largest = np.bincount(owner, weights=work).max()
    assert largest <= least_largest(work.tolist(), blocks) * (1 + 1e-9)


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=300), st.integers(1, 9))
def test_nobody_is_left_to_a_rank_that_is_not_there(sizes, parts):
    """Work in fractions, whose sum depends on the order of adding."""
    work = np.array(sizes) / 3 + 0.1
    for ranks in (1, parts):
        assert contiguous_owners(work, ranks).max() == min(ranks, len(work)) - 1


def test_one_client_per_rank_where_ranks_are_as_many():
    assert contiguous_owners(np.array([5.0, 1, 9, 2]), 4).tolist() == [0, 1, 2, 3]
    assert contiguous_owners(np.array([5.0, 1]), 7).tolist() == [0, 1]


def federation(n, unseen=()):
    mask = np.isin(np.arange(n), unseen)
    return Federation(Alone(), np.zeros(n, int), mask, np.ones(n, int))


@given(st.integers(1, 60), st.floats(0.01, 1.0), st.integers(1, 5))
def test_sampling_without_replacement_takes_the_rounded_fraction(n, fraction, round):
    active = participants(federation(n), fraction, 0, round)
    assert active.sum() == max(1, int(np.floor(fraction * n + 0.5)))


def test_participation_is_drawn_anew_every_round_and_spares_the_unseen():
    some = federation(40, unseen=[0, 1, 2])
    drawn = [participants(some, 0.5, 0, k) for k in range(1, 200)]
    assert not any(active[:3].any() for active in drawn)
    share = np.mean([active[3:] for active in drawn], axis=0)
    assert share.min() > 0.35 and share.max() < 0.65
    bernoulli = [participants(some, Bernoulli(p=0.3), 0, k) for k in range(1, 200)]
    sizes = [active.sum() for active in bernoulli]
    assert abs(np.mean(sizes) - 0.3 * 37) < 1 and len(set(sizes)) > 3


def test_unseen_clients_are_the_rounded_fraction_and_never_all():
    assert draw_unseen(10, 0.25, 0).sum() == 3
    assert draw_unseen(2, 0.99, 0).sum() == 1
    assert not draw_unseen(7, 0.0, 0).any()


# Clients dealt to ranks by their work, measured or counted.


works = st.lists(st.floats(0.01, 100), min_size=1, max_size=7)


@settings(max_examples=60, deadline=None)
@given(works, st.integers(1, 3))
def test_no_rank_has_more_than_four_thirds_of_the_least_largest_work(work, ranks):
    work = np.array(work)
    dealt = np.bincount(balanced_owners(work, ranks), work, minlength=ranks).max()
    every = itertools.product(range(ranks), repeat=len(work))
    best = min(np.bincount(owner, work, minlength=ranks).max() for owner in every)
    assert dealt <= (4 / 3 - 1 / (3 * ranks)) * best * (1 + 1e-12)


def test_work_is_the_samples_that_steps_and_scoring_visit():
    counts = np.array([10, 25, 0])
    about = Description("made up", (2,), 2, counts, 0 * counts, np.array([4, 0, 0]))
    base = {"clients": 3, "evaluation": {"every": 2}}

    def of(**local):
        return samples_of_steps(resolve({**base, "local": {"batch_size": 10, **local}}), about)

    assert np.allclose(of(epochs=2), [20 + 2, 50, 0])
    # Three minibatches of a client with 25 samples have 25 samples in all.
    assert np.allclose(of(steps=6), [60 + 2, 50, 0])


@pytest.mark.parametrize("placement", ["contiguous", "partitioned", "balanced"])
def test_ranks_take_equally_many_steps_however_large_the_shards_are(placement):
    data = Listed([(np.ones((n, 2)), np.arange(n) % 2) for n in (400, 10, 10, 10)])
    every = {"clients": 4, "rounds": 1, "algorithm": "fedavg"}
    steps = {"local": {"steps": 5, "batch_size": 10}, "evaluation": {"every": 1000}}
    exchange = {"name": "gossip", "topology": "complete"}
    configuration = resolve({**every, **steps, "exchange": exchange, "placement": placement})
    setups = played(lambda rank: make(configuration, rank, 1, dataset=data), 2)
    assert sorted(len(setup.federation.hosted) for setup in setups) == [2, 2]


@pytest.mark.mpi
@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_balanced_placement_changes_no_number(exchange, tmp_path):
    chosen = {"placement": "balanced", "exchange": exchange, "clients": 12}
    assert unlike_one_rank({**SMALL, **chosen}, tmp_path) == []


def test_streams_are_named_and_nothing_else():
    one = random.stream(3, "model", 2, 7).random(4)
    random.stream(9, "other").random(100)
    assert np.array_equal(one, random.stream(3, "model", 2, 7).random(4))
    others = [(4, "model", 2, 7), (3, "data", 2, 7), (3, "model", 1, 7), (3, "model", 2, 6)]
    assert all(not np.array_equal(one, random.stream(*names).random(4)) for names in others)


def test_mix64_is_the_published_splitmix64():
    # The first outputs of SplitMix64 seeded with 0 (Vigna's splitmix64.c, widely quoted).
    weyl = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        states = np.arange(1, 4, dtype=np.uint64) * weyl
    assert [int(v) for v in random.mix64(states)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(0, 2**32))
def test_shuffles_permute_every_row_by_its_own_key(lengths, seed):
    lengths = np.array(lengths)
    keys = random.client_keys(seed, "test", 1, np.arange(len(lengths)))
    whole = random.shuffles(keys, lengths)
    ends = np.cumsum(lengths)
    for i, (end, length) in enumerate(zip(ends, lengths, strict=True)):
        row = whole[end - length : end]
        assert np.array_equal(np.sort(row), np.arange(length))
        assert np.array_equal(row, random.shuffles(keys[i : i + 1], lengths[i : i + 1]))


def test_shuffles_sort_each_row_by_the_upper_bits_of_its_samples():
    keys = random.client_keys(0, "test", 1, np.arange(7))
    lengths, starts = np.array([7, 0, 1, 30000, 12, 9000, 5]), np.array([4, 0, 1, 9, 2, 6, 5])
    expected = [
        np.argsort(random.bits_at(key, np.arange(length)) >> np.uint64(32), kind="stable")
        for key, length in zip(keys, lengths, strict=True)
    ]
    assert np.array_equal(random.shuffles(keys, lengths), np.concatenate(expected))
    moved = [start + row for start, row in zip(starts, expected, strict=True)]
    assert np.array_equal(random.shuffles(keys, lengths, starts), np.concatenate(moved))
    assert len(random.shuffles(keys[:2], np.zeros(2, np.int64))) == 0


def test_bits_are_those_of_splitmix64_at_each_counter():
    keys = random.client_keys(3, "bits", 1, np.arange(4))
    rows = random.rows_of_bits(keys, 6)
    assert rows.dtype == np.uint64 and len(np.unique(rows)) == rows.size
    assert np.array_equal(random.bits_at(keys[:, None], np.arange(6)), rows)


def test_shuffles_are_uniform():
    # chi-square of the position of sample 0 among 8, over 8000 rows: 7 degrees of freedom.
    keys = random.client_keys(1, "uniform", 1, np.arange(8000))
    rows = random.shuffles(keys, np.full(8000, 8)).reshape(8000, 8)
    counts = np.bincount(np.argmin(rows, axis=1), minlength=8)
    assert ((counts - 1000) ** 2 / 1000).sum() < 29.9  # 1 - 1e-4 quantile
    pairs = np.bincount(rows[:, 0] * 8 + rows[:, 1], minlength=64)
    pairs = pairs[pairs > 0]
    assert len(pairs) == 56 and ((pairs - 8000 / 56) ** 2 / (8000 / 56)).sum() < 105  # 55 d.f.


# Clients that drop out, come back or are late: schedules against their closed forms.


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
    common = [*TINY, *words, "participation={name: bernoulli, p: 0.7}", "clients=4", "rounds=8"]
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
    assert re.search("algorithm.*'user_components:Stepless'", outcome.err)


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
