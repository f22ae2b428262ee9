from __future__ import annotations

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpifed.federation.clients import Federation, contiguous_owners, draw_unseen, participants
from mpifed.federation.participation import Bernoulli
from mpifed.mpi.communicator import Alone


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
