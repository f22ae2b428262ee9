from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mpifed import random


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
