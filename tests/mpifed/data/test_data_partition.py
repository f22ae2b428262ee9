from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mpifed.data.partitions import (
    contiguous,
    counts_60_20_20,
    dirichlet,
    iid,
    partition,
    pathological,
    split_60_20_20,
)
from mpifed.errors import InputError

label_sizes = st.lists(st.integers(1, 60), min_size=1, max_size=8)
alphas = st.sampled_from([1e-6, 1e-3, 0.05, 0.4, 1.0, 100.0, 1e9]) | st.floats(1e-6, 1e9)


def labels_of(sizes: list[int], seed: int) -> np.ndarray:
    """Labels 3, 10, 17, ... in random order, so that nothing hangs on 0 .. k-1 or on the order."""
    labels = np.repeat(3 + 7 * np.arange(len(sizes)), sizes)
    return np.random.default_rng(seed).permutation(labels)


def check_partition(parts: list[np.ndarray], n_samples: int, n_clients: int, least: int) -> None:
    assert len(parts) == n_clients
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n_samples))
    assert min(map(len, parts)) >= least
    assert all(np.all(np.diff(part) > 0) for part in parts)


@given(label_sizes, st.integers(1, 40), st.integers(2, 7), alphas, st.integers(0, 2**32))
def test_every_sample_has_one_owner_and_nobody_is_short(sizes, n_clients, least, alpha, seed):
    labels = labels_of(sizes, seed)
    for function, options in ((iid, {}), (dirichlet, {"dirichlet_alpha": alpha})):

        def deal(function=function, options=options):
            rng = np.random.default_rng(seed)
            return function(labels, n_clients, rng, min_samples=least, **options)

        if len(labels) < n_clients * least:
            with pytest.raises(InputError, match=f"clients is {n_clients}.*at most"):
                deal()
            continue
        parts = deal()
        check_partition(parts, len(labels), n_clients, least)
        assert all(np.array_equal(a, b) for a, b in zip(parts, deal(), strict=True))


@given(label_sizes, st.integers(1, 25), st.integers(2, 7), st.integers(1, 8), st.integers(0, 2**32))
def test_pathological_gives_exactly_the_labels_asked_for(sizes, n_clients, least, each, seed):
    labels = labels_of(sizes, seed)
    smallest = -(-least // each)
    possible = (
        each <= len(sizes) <= n_clients * each
        and min(sizes) >= smallest
        and sum(min(size // smallest, n_clients) for size in sizes) >= n_clients * each
    )

    def deal():
        rng = np.random.default_rng(seed)
        return pathological(labels, n_clients, rng, min_samples=least, classes_per_client=each)

    if not possible:
        with pytest.raises(InputError, match=r"classes_per_client|min_samples"):
            deal()
        return
    parts = deal()
    check_partition(parts, len(labels), n_clients, least)
    assert all(len(np.unique(labels[part])) == each for part in parts)
    assert all(np.array_equal(a, b) for a, b in zip(parts, deal(), strict=True))


@given(label_sizes, st.integers(1, 40), st.integers(0, 2**32))
def test_iid_sizes_differ_by_at_most_one(sizes, n_clients, seed):
    labels = labels_of(sizes, seed)
    assume(len(labels) >= 2 * n_clients)
    parts = iid(labels, n_clients, np.random.default_rng(seed), min_samples=2)
    assert len({len(part) for part in parts}) <= 2
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("alpha", [0.1, 0.4, 5.0])
def test_shares_of_a_label_have_the_second_moment_of_the_dirichlet_law(alpha):
    n_clients, n_labels, size = 10, 600, 500
    labels = np.repeat(np.arange(n_labels), size)
    parts = dirichlet(labels, n_clients, np.random.default_rng(0), dirichlet_alpha=alpha)
    counts = np.stack([np.bincount(labels[part], minlength=n_labels) for part in parts])
    # E[c (c-1)] = size (size-1) E[p^2] for multinomial counts, and E[p^2] of Dir(alpha 1).
    moment = (counts * (counts - 1.0)).mean() / (size * (size - 1.0))
    assert moment == pytest.approx((alpha + 1) / (n_clients * (n_clients * alpha + 1)), rel=0.06)


def test_pathological_shards_are_about_equal_and_pairs_of_labels_are_mixed():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    parts = pathological(labels, 100, np.random.default_rng(0))
    assert {len(part) for part in parts} == {60}
    assert len({tuple(np.unique(labels[part])) for part in parts}) > 25


def test_the_clients_that_would_be_empty_are_filled_from_the_largest():
    labels = np.repeat([0, 1], 500)
    rng = np.random.default_rng(3)
    sizes = sorted(map(len, dirichlet(labels, 50, rng, dirichlet_alpha=1e-6, min_samples=5)))
    assert sizes[:48] == [5] * 48
    assert sum(sizes) == 1000


@given(st.integers(2, 10**6))
def test_60_20_20_leaves_no_split_empty_that_can_be_filled(n):
    n_train, n_val, n_test = counts_60_20_20(n)
    assert n_train + n_val + n_test == n
    assert n_train >= 1 and n_test >= 1 and n_val >= (n >= 3)
    assert abs(n_train - 0.6 * n) <= 1 and abs(n_val - 0.2 * n) <= 0.5


def test_60_20_20_of_five_is_three_one_one():
    assert [int(count) for count in counts_60_20_20(5)] == [3, 1, 1]


@given(st.integers(2, 300), st.integers(0, 2**32))
def test_a_split_keeps_every_sample(n, seed):
    indices = 10 + 3 * np.arange(n)
    parts = split_60_20_20(indices, np.random.default_rng(seed))
    assert [len(part) for part in parts] == [int(c) for c in counts_60_20_20(n)]
    assert np.array_equal(np.sort(np.concatenate(parts)), indices)


def test_a_partition_takes_its_own_options_only():
    labels = np.repeat(np.arange(4), 50)
    options = {"dirichlet_alpha": 0.4, "classes_per_client": 1, "min_samples": 5}
    parts = partition("pathological", labels, 4, np.random.default_rng(0), options)
    assert [len(np.unique(labels[part])) for part in parts] == [1] * 4


def test_contiguous_runs_follow_the_papers_rule():
    labels = np.zeros(11, np.int64)
    rng = np.random.default_rng(0)
    runs = contiguous(labels, 4, rng, min_samples=1)
    # 1-based rows floor((i - 1) r / n) + 1 .. floor(i r / n) for r = 11, n = 4.
    assert [run.tolist() for run in runs] == [[0, 1], [2, 3, 4], [5, 6, 7], [8, 9, 10]]
    runs = contiguous(labels, 4, rng, min_samples=1, contiguous_rule="array_split")
    assert [run.tolist() for run in runs] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]


@given(st.integers(1, 400), st.integers(1, 60), st.sampled_from(["floor", "array_split"]))
def test_contiguous_runs_are_whole_and_about_equal(n, n_clients, rule):
    assume(n >= n_clients)
    rng = np.random.default_rng(0)
    parts = contiguous(np.zeros(n), n_clients, rng, min_samples=1, contiguous_rule=rule)
    check_partition(parts, n, n_clients, n // n_clients)
    assert np.array_equal(np.concatenate(parts), np.arange(n))
    assert max(map(len, parts)) <= -(-n // n_clients)


def test_kmeans_gives_every_client_a_place_of_its_own():
    points = np.random.default_rng(0).permutation(np.arange(60.0))[:, None]
    parts = partition("kmeans", points, 5, np.random.default_rng(1), {"min_samples": 5})
    check_partition(parts, 60, 5, 12)
    # On a line equal clusters are intervals.
    places = sorted(sorted(points[part, 0]) for part in parts)
    assert np.concatenate(places).tolist() == list(range(60))
    with pytest.raises(InputError, match="at most 12 of 5 samples"):
        partition("kmeans", points, 13, np.random.default_rng(1), {"min_samples": 5})
