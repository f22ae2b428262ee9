""""""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from on_ranks import SMALL, run, unlike_one_rank

from mpifed import random
from mpifed.config.configuration import resolve
from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.federation.clients import (
    Federation,
    balanced_owners,
    contiguous_owners,
    draw_unseen,
    participants,
)
from mpifed.federation.participation import Bernoulli
from mpifed.mpi.communicator import Alone
from mpifed.training.build import HEAD, read_costs, samples_of_steps


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


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("client,seconds\n0,1\n1,2\n", "has 2 clients, but the run has 3"),
        ("client,seconds\n0,1\n1,-2\n2,3\n", "is not the timing.csv of a run"),
        ("client,seconds\n0,1\n1\n2,3\n", "is not the timing.csv of a run"),
    ],
)
def test_costs_of_other_clients_are_refused(text, message, tmp_path):
    path = tmp_path / "timing.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_costs(tmp_path, 3)


def test_a_run_writes_what_its_clients_cost(tmp_path):
    run("synthetic-fedem", {**SMALL, "rounds": 1}, tmp_path / "first", Alone())
    assert (tmp_path / "first" / "timing.csv").read_text().startswith(HEAD)
    costs = read_costs(tmp_path / "first", 7)
    assert (costs > 0).all()
    assert json.loads((tmp_path / "first" / "summary.json").read_text())["imbalance"] == 1.0


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
    keys = random.client_keys(0, "test", 1, np.arange(5))
    lengths = np.array([7, 0, 1, 3000, 12])
    expected = [
        np.argsort(random.bits_at(key, np.arange(length)) >> np.uint64(32), kind="stable")
        for key, length in zip(keys, lengths, strict=True)
    ]
    assert np.array_equal(random.shuffles(keys, lengths), np.concatenate(expected))
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
