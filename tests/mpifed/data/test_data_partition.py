"""Partitions of samples among clients: who gets which, in what numbers, and rotated pictures."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from loading import all_rows, dataset_of, labels_by_client

import mpifed
from mpifed.dataset import Dataset, Pool, PooledDataset, Source, partitions
from mpifed.errors import InputError
from mpifed.testing import load_dataset, played

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
    for function, options in (
        (partitions.iid, {}),
        (partitions.dirichlet, {"dirichlet_alpha": alpha}),
    ):

        def deal(function=function, options=options):
            rng = np.random.default_rng(seed)
            return function(labels, n_clients, rng, min_samples=least, **options)

        if len(labels) < n_clients * least:
            with pytest.raises(
                InputError,
                match=rf"clients.* {n_clients},.* {len(labels) // least} of",
            ):
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
        return partitions.pathological(
            labels, n_clients, rng, min_samples=least, classes_per_client=each
        )

    if not possible:
        with pytest.raises(InputError, match=r"data\.classes_per_client"):
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
    parts = partitions.iid(labels, n_clients, np.random.default_rng(seed), min_samples=2)
    assert len({len(part) for part in parts}) <= 2
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("alpha", [0.1, 0.4, 5.0])
def test_shares_of_a_label_have_the_second_moment_of_the_dirichlet_law(alpha):
    n_clients, n_labels, size = 10, 600, 500
    labels = np.repeat(np.arange(n_labels), size)
    parts = partitions.dirichlet(labels, n_clients, np.random.default_rng(0), dirichlet_alpha=alpha)
    counts = np.stack([np.bincount(labels[part], minlength=n_labels) for part in parts])
    # E[c (c-1)] = size (size-1) E[p^2] for multinomial counts, and E[p^2] of Dir(alpha 1).
    moment = (counts * (counts - 1.0)).mean() / (size * (size - 1.0))
    assert moment == pytest.approx((alpha + 1) / (n_clients * (n_clients * alpha + 1)), rel=0.06)


def test_labels_of_a_group_are_dealt_alike():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 4000))
    rng, options = np.random.default_rng(1), {"dirichlet_alpha": 0.4, "label_groups": 3}
    parts = partitions.dirichlet(labels, 8, rng, **options)
    assert sorted(np.concatenate(parts)) == list(range(len(labels)))
    shares = np.stack([np.bincount(labels[part], minlength=10) for part in parts], 1) / 4000
    # A client's share of a label is that of the label's group, but for the draw of the samples.
    apart = np.abs(shares[:, None] - shares[None]).max(2)
    alike = apart < 0.05
    assert sorted(alike.sum(1)) == [3] * 6 + [4] * 4 and (alike == alike.T).all()
    assert apart[~alike].min() > 0.1
    with pytest.raises(InputError, match=r"data\.label_groups is 11; .* at most 10"):
        partitions.dirichlet(labels, 8, rng, label_groups=11)
    whole = partitions.dirichlet(labels, 8, np.random.default_rng(1), label_groups=1)
    (sizes,) = {tuple(len(part) for part in whole)}
    draw = np.random.default_rng(1)
    draw.permutation(10)
    expected = draw.multinomial(len(labels), draw.dirichlet(np.full(8, 0.4)))
    assert np.array_equal(sizes, expected)


def test_dirichlet_shares_without_samples_are_left_out():
    labels, alpha = np.repeat(np.arange(3), 40), {"dirichlet_alpha": 0.05, "min_samples": 1}
    with pytest.raises(InputError, match=r"of 30 shares .* clients must be \d+") as refused:
        partitions.dirichlet(labels, 30, np.random.default_rng(1), dirichlet_shares=30, **alpha)
    n = int(str(refused.value).split()[-1])
    assert 1 < n < 30
    rng = np.random.default_rng(1)
    shares = partitions.dirichlet(labels, n, rng, dirichlet_shares=30, **alpha)
    assert len(shares) == n and min(map(len, shares)) >= 1
    # None is filled up from another: every sample is dealt once.
    assert sorted(np.concatenate(shares)) == list(range(120))


def test_pathological_shards_are_about_equal_and_pairs_of_labels_are_mixed():
    labels = np.random.default_rng(0).permutation(np.repeat(np.arange(10), 600))
    parts = partitions.pathological(labels, 100, np.random.default_rng(0))
    assert {len(part) for part in parts} == {60}
    assert len({tuple(np.unique(labels[part])) for part in parts}) > 25


def test_the_clients_that_would_be_empty_are_filled_from_the_largest():
    labels = np.repeat([0, 1], 500)
    rng = np.random.default_rng(3)
    sizes = sorted(
        map(len, partitions.dirichlet(labels, 50, rng, dirichlet_alpha=1e-6, min_samples=5))
    )
    assert sizes[:48] == [5] * 48
    assert sum(sizes) == 1000


@given(st.integers(2, 10**5))
def test_60_20_20_leaves_no_split_empty_that_can_be_filled(n):
    parts = partitions.split_in_order(np.arange(n))
    n_train, n_val, n_test = map(len, parts)
    assert np.array_equal(np.concatenate(parts), np.arange(n))
    assert n_train >= 1 and n_test >= 1 and n_val >= (n >= 3)
    assert abs(n_train - 0.6 * n) <= 1 and abs(n_val - 0.2 * n) <= 0.5


def test_60_20_20_of_five_is_three_one_one():
    assert [len(part) for part in partitions.split_in_order(np.arange(5))] == [3, 1, 1]


def test_a_partition_takes_its_own_options_only():
    labels = np.repeat(np.arange(4), 50)
    options = {"dirichlet_alpha": 0.4, "classes_per_client": 1, "min_samples": 5}
    parts = partitions.partition("pathological", labels, 4, np.random.default_rng(0), options)
    assert [len(np.unique(labels[part])) for part in parts] == [1] * 4


def test_contiguous_runs_follow_the_papers_rule():
    labels = np.zeros(11, np.int64)
    rng = np.random.default_rng(0)
    runs = partitions.contiguous(labels, 4, rng, min_samples=1)
    # 1-based rows floor((i - 1) r / n) + 1 .. floor(i r / n) for r = 11, n = 4.
    assert [run.tolist() for run in runs] == [[0, 1], [2, 3, 4], [5, 6, 7], [8, 9, 10]]
    runs = partitions.contiguous(labels, 4, rng, min_samples=1, contiguous_rule="array_split")
    assert [run.tolist() for run in runs] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10]]


@given(st.integers(1, 400), st.integers(1, 60), st.sampled_from(["floor", "array_split"]))
def test_contiguous_runs_are_whole_and_about_equal(n, n_clients, rule):
    assume(n >= n_clients)
    rng = np.random.default_rng(0)
    parts = partitions.contiguous(np.zeros(n), n_clients, rng, min_samples=1, contiguous_rule=rule)
    check_partition(parts, n, n_clients, n // n_clients)
    assert np.array_equal(np.concatenate(parts), np.arange(n))
    assert max(map(len, parts)) <= -(-n // n_clients)


def test_kmeans_gives_every_client_a_place_of_its_own():
    points = np.random.default_rng(0).permutation(np.arange(60.0))[:, None]
    parts = partitions.partition("kmeans", points, 5, np.random.default_rng(1), {"min_samples": 5})
    check_partition(parts, 60, 5, 12)
    # On a line equal clusters are intervals.
    places = sorted(sorted(points[part, 0]) for part in parts)
    assert np.concatenate(places).tolist() == list(range(60))
    with pytest.raises(InputError, match=r"clients.*\b13\b.*\b60 samples.*\b12 of 5 samples"):
        partitions.partition("kmeans", points, 13, np.random.default_rng(1), {"min_samples": 5})


# Pachinko allocation, quantity skew, natural partitions, rotations and published splits.


alphas_of_skew = st.sampled_from([1e-6, 1e-3, 0.05, 0.4, 1.0, 100.0, 1e9]) | st.floats(1e-6, 1e9)
seeds = st.integers(0, 2**32)


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    return all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


def check_partition_of_skew(parts: list[np.ndarray], n_samples: int) -> None:
    assert np.array_equal(np.sort(np.concatenate(parts)), np.arange(n_samples))
    assert all(np.all(np.diff(part) > 0) for part in parts)


trees = st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=4), min_size=1, max_size=5)


def pairs_of(tree: list[list[int]], seed: int) -> np.ndarray:
    """Coarse and fine labels with so many samples of each fine label, in random order."""
    rows = [(2 + 5 * c, 100 * c + f) for c, sizes in enumerate(tree) for f in range(len(sizes))]
    sizes = [size for branch in tree for size in branch]
    return np.random.default_rng(seed).permutation(np.repeat(np.array(rows), sizes, axis=0))


@given(trees, st.integers(1, 20), st.integers(2, 5), alphas_of_skew, alphas_of_skew, seeds)
def test_pachinko_gives_every_sample_once_in_equal_numbers(tree, n, least, alpha, beta, seed):
    pairs = pairs_of(tree, seed)

    def deal():
        rng = np.random.default_rng(seed)
        options = {"pachinko_alpha": alpha, "pachinko_beta": beta, "min_samples": least}
        return partitions.pachinko(pairs, n, rng, **options)

    if len(pairs) < n * least:
        with pytest.raises(
            InputError, match=rf"clients.* {n},.* {len(pairs) // least} of {least} "
        ):
            deal()
        return
    parts = deal()
    check_partition_of_skew(parts, len(pairs))
    assert {len(part) for part in parts} <= {len(pairs) // n, len(pairs) // n + 1}
    assert same(parts, deal())


@given(seeds, st.integers(1, 8))
def test_pachinko_with_small_parameters_uses_up_one_label_after_another(seed, n_clients):
    pairs = pairs_of([[10] * 4] * 8, seed)
    rng = np.random.default_rng(seed)
    parts = partitions.pachinko(pairs, n_clients, rng, pachinko_alpha=1e-6, pachinko_beta=1e-6)
    size = len(parts[0])
    # The first client finds everything there: whole labels of whole coarse labels, and the rest.
    _, fine = np.unique(pairs[parts[0], 1], return_counts=True)
    _, coarse = np.unique(pairs[parts[0], 0], return_counts=True)
    assert sorted(fine)[1:] == [10] * (len(fine) - 1) and len(fine) == -(-size // 10)
    assert sorted(coarse)[1:] == [40] * (len(coarse) - 1) and len(coarse) == -(-size // 40)


def test_pachinko_with_large_parameters_is_uniform_over_leaves_of_uniform_branches():
    # Of two coarse labels with 1 and 4 fine ones, the first is drawn every second time.
    pairs = pairs_of([[4000], [4000] * 4], 0)
    options = {"pachinko_alpha": 1e9, "pachinko_beta": 1e9}
    parts = partitions.pachinko(pairs, 20, np.random.default_rng(0), **options)
    share = np.mean(pairs[parts[0], 0] == 2)
    assert share == pytest.approx(0.5, abs=4 * 0.5 / np.sqrt(len(parts[0])))
    # When the first is used up, everyone draws from the other alone.
    assert all(np.all(pairs[part, 0] == 7) for part in parts[9:])


def test_shares_of_coarse_labels_have_the_moments_of_the_dirichlet_law():
    pairs = np.stack([np.repeat(np.arange(10), 400), np.repeat(np.arange(40), 100)], 1)
    # Each client alone, so that nothing is used up: E[p^2] of Dir(alpha 1) and of the product.
    alpha, beta, first = 0.4, 10.0, []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        options = {"pachinko_alpha": alpha, "pachinko_beta": beta}
        own = partitions.pachinko(pairs, 40, rng, **options)[0]
        first.append(np.bincount(pairs[own, 0], minlength=10))
    counts, size = np.array(first), 100
    moment = (counts * (counts - 1.0)).mean() / (size * (size - 1.0))
    assert moment == pytest.approx((alpha + 1) / (10 * (10 * alpha + 1)), rel=0.15)


@given(
    st.integers(1, 300),
    st.integers(1, 30),
    st.integers(2, 6),
    st.sampled_from(["dirichlet", "lognormal", "power_law"]),
    alphas_of_skew,
    st.floats(0, 20),
    seeds,
)
def test_quantity_skew_gives_every_sample_once(n, n_clients, least, law, alpha, spread, seed):
    def deal():
        options = {"quantity_law": law, "quantity_alpha": alpha, "quantity_sigma": spread}
        options |= {"quantity_exponent": spread, "min_samples": least}
        return partitions.quantity_skew(
            np.zeros(n), n_clients, np.random.default_rng(seed), **options
        )

    if n < n_clients * least:
        with pytest.raises(InputError, match=rf"clients.* {n_clients},.* {n // least} of {least} "):
            deal()
        return
    parts = deal()
    check_partition_of_skew(parts, n)
    assert min(map(len, parts)) >= least
    assert same(parts, deal())


@pytest.mark.parametrize(
    "options",
    [
        {"quantity_alpha": 1e9},
        {"quantity_law": "lognormal", "quantity_sigma": 0.0},
        {"quantity_law": "power_law", "quantity_exponent": 0.0},
    ],
)
def test_without_skew_clients_are_equal(options):
    sizes = list(
        map(len, partitions.quantity_skew(np.zeros(1003), 50, np.random.default_rng(0), **options))
    )
    assert max(sizes) - min(sizes) <= 1


def test_laws_of_sizes():
    rng = np.random.default_rng(0)
    options = {"quantity_law": "power_law", "quantity_exponent": 2.0, "min_samples": 2}
    sizes = sorted(map(len, partitions.quantity_skew(np.zeros(1_000_000), 10, rng, **options)))[
        ::-1
    ]
    # size - 2 is proportional to rank^-2.
    ratio = (sizes[0] - 2) / (np.array(sizes) - 2)
    assert np.sqrt(ratio) == pytest.approx(np.arange(1, 11), rel=1e-3)
    options = {"quantity_law": "lognormal", "quantity_sigma": 1.5, "min_samples": 2}
    sizes = np.array([*map(len, partitions.quantity_skew(np.zeros(900_000), 1000, rng, **options))])
    assert np.std(np.log(sizes - 1)) == pytest.approx(1.5, rel=0.08)
    q = np.array(
        [*map(len, partitions.quantity_skew(np.zeros(900_000), 1000, rng, quantity_alpha=0.5))]
    )
    share = (q - 5) / (q - 5).sum()
    # E[q^2] of Dir(alpha 1).
    assert (share**2).mean() == pytest.approx(1.5 / (1000 * (1000 * 0.5 + 1)), rel=0.15)


def test_small_alpha_leaves_all_but_the_least_to_one_client():
    rng = np.random.default_rng(0)
    sizes = sorted(map(len, partitions.quantity_skew(np.zeros(500), 20, rng, quantity_alpha=1e-6)))
    assert sizes == [5] * 19 + [405]


@given(st.integers(0, 10**6), st.lists(st.floats(0, 1e6), min_size=1, max_size=20))
def test_apportioned_numbers_add_up_and_are_near(total, shares):
    shares = np.array(shares)
    assume(shares.sum() > 1e-3)
    found = partitions.apportioned(total, shares)
    assert found.sum() == total and found.min() >= 0
    assert np.all(np.abs(found - total * (shares / shares.sum())) <= 1 + 1e-6)


owners = st.lists(st.integers(0, 8), min_size=1, max_size=120).map(np.array)


@given(
    owners, st.integers(1, 10), st.integers(2, 8), st.sampled_from(["random", "first", "largest"])
)
def test_natural_clients_are_whole_sources(owner, n_clients, least, choose):
    def deal():
        rng = np.random.default_rng(5)
        return partitions.natural(owner, n_clients, rng, min_samples=least, choose=choose)

    sizes = np.bincount(owner)
    enough = np.flatnonzero(sizes >= least)
    if len(enough) < n_clients:
        with pytest.raises(InputError, match=rf"clients.*\b{n_clients}\b.*\b{len(enough)} sources"):
            deal()
        return
    parts = deal()
    sources = [int(owner[part[0]]) for part in parts]
    assert sources == sorted(set(sources)) and set(sources) <= set(enough)
    assert all(np.array_equal(np.flatnonzero(owner == s), p) for s, p in zip(sources, parts))  # noqa: B905
    assert same(parts, deal())
    if choose == "first":
        assert sources == enough[:n_clients].tolist()
    if choose == "largest":
        left_out = [sizes[s] for s in enough if s not in sources]
        assert min(sizes[sources]) >= max(left_out, default=0)


def rotated(pictures: np.ndarray, *angles: float, clients: int = 1, **options) -> np.ndarray:
    """Pictures in their order, as clients with these rotations have them."""
    options = {"rotations": list(angles), "partition": "contiguous", "split": "in_order", **options}
    data = mpifed.arrays(pictures, **options)
    dtype = torch.uint8 if pictures.dtype == np.uint8 else torch.float64
    return by_client(load_dataset(data, clients), dtype)


def by_client(dataset: Dataset, dtype: torch.dtype) -> np.ndarray:
    shards = dataset.load(np.arange(dataset.description.n_clients), dtype)
    splits = (shards.train, shards.val, shards.test)
    return np.concatenate(
        [
            split.x[split.offsets[client] : split.offsets[client + 1]].numpy()
            for client in range(dataset.description.n_clients)
            for split in splits
        ]
    )


@pytest.mark.parametrize("angle", [90.0, 180.0, 33.0])
def test_channels_may_come_first_or_last(angle: float):
    pictures = np.random.default_rng(0).integers(0, 256, (5, 3, 9, 7), np.uint8)
    last = np.ascontiguousarray(pictures.transpose(0, 2, 3, 1))
    if angle == 90.0:
        pictures, last = pictures[..., :7, :], last[:, :7]
    turned = rotated(pictures, angle)
    assert np.array_equal(rotated(last, angle), turned.transpose(0, 2, 3, 1))
    for channel in range(3):
        assert np.array_equal(rotated(pictures[:, channel], angle), turned[:, channel])


@given(st.integers(1, 30), st.lists(st.sampled_from([0, 90, 180, 270]), min_size=1, unique=True))
@settings(max_examples=20)
def test_angles_are_shared_out_equally(n_clients, rotations):
    corner = np.zeros((5 * n_clients, 4, 4), np.uint8)
    corner[:, 0, 0] = 255
    turned = rotated(corner, *rotations, clients=n_clients)[::5]
    at = [(0, 0), (3, 0), (3, 3), (0, 3)]  # counter-clockwise
    times = [int((turned[:, *at[angle // 90]] == 255).sum()) for angle in rotations]
    assert sum(times) == n_clients and max(times) - min(times) <= 1


@pytest.mark.parametrize("rotations", [[], [0, 120, 240]])
def test_clients_turn_by_about_the_angles(rotations):
    rows, columns = np.mgrid[-20:21, -20:21]
    spot = np.exp(-(rows**2 + (columns - 12) ** 2) / 8)
    options = {"clients": 40, "rotation_spread": 20}
    pictures = np.broadcast_to(spot, (200, 41, 41))
    turned = rotated(pictures, *rotations, **options)
    assert np.array_equal(turned, rotated(pictures, *rotations, **options))
    angles = np.degrees(
        np.arctan2(-(turned * rows).sum((1, 2)), (turned * columns).sum((1, 2)))
    ).reshape(40, 5)
    assert np.ptp(angles, axis=1).max() < 1e-9
    away = np.abs((angles[:, :1] - (rotations or [0]) + 180) % 360 - 180).min(axis=1)
    assert away.max() < 20.5 and away.max() > 10


@given(st.integers(-4, 4), st.integers(5, 8), st.integers(3, 6), seeds)
def test_turns_are_a_group(quarters, n, side, seed):
    pictures = np.random.default_rng(seed).integers(0, 256, (n, 3, side, side), np.uint8)
    turned = rotated(pictures, 90.0 * quarters)
    assert np.array_equal(rotated(turned, -90.0 * quarters), pictures)
    assert np.array_equal(rotated(turned, 90.0), rotated(pictures, 90.0 * (quarters + 1) % 360))
    # Interpolation agrees with moving pixels where it is exact.
    near = rotated(pictures.astype(float), 90.0 * quarters % 360 + 1e-9)
    inner = (..., slice(1, -1), slice(1, -1))
    assert np.allclose(near[inner], turned[inner].astype(float), atol=1e-4)


def test_other_angles_interpolate_each_picture_alone():
    pictures = np.random.default_rng(0).integers(0, 256, (6, 9, 7), np.uint8)
    turned = rotated(pictures, 33.0)
    assert turned.dtype == np.uint8 and turned.shape == pictures.shape
    assert np.array_equal(turned[1:], rotated(pictures[1:], 33.0))
    # A disc about the centre stays one, up to the pixels of its rim.
    rows, columns = np.mgrid[-20:21, -20:21]
    disc = np.repeat(200.0 * (np.hypot(rows, columns) < 12)[None], 5, axis=0)
    assert np.abs(rotated(disc, 17.0) - disc).mean() < 4


def test_clients_pictures_are_turned_as_they_are_stored():
    plain = dataset_of("digits", 6, partition="iid")
    turned = dataset_of("digits", 6, partition="iid", rotations=[0, 90, 180], rotation_spread=5)
    quarter = dataset_of("digits", 6, partition="iid", rotations=[90])
    one, by_90 = (d.load(np.arange(6), torch.float32).train for d in (plain, quarter))
    assert torch.equal(torch.rot90(one.x, 1, (1, 2)), by_90.x) and torch.equal(one.y, by_90.y)
    whole = turned.load(np.arange(6), torch.float32).val
    stored = turned.load(np.array([2, 5]), torch.uint8).val
    rows = np.concatenate([np.arange(*whole.offsets[c : c + 2]) for c in (2, 5)])
    assert torch.equal(whole.x[rows], stored.x.float() / 16)
    assert not torch.equal(whole.x, plain.load(np.arange(6), torch.float32).val.x)


def made(n: int, owner=None, coarse=None, is_test=None, task="classification", shape=(3,)):
    """A data set of n samples whose x is their number."""
    labels = np.arange(n) % 4 if task == "classification" else np.zeros((n, 1))
    n_classes = 4 if task == "classification" else 1
    pool = Pool("made", labels, n_classes, shape, "float64", task=task)
    x = np.broadcast_to(np.arange(n, dtype=float).reshape(-1, *[1] * len(shape)), (n, *shape))
    return Source(pool, lambda: [x], owner, coarse, is_test)


def dealt(source: Source, n_clients: int = 3, further=None, **options) -> PooledDataset:
    return played(
        lambda alone: PooledDataset(lambda: source, further or {}, n_clients, 0, alone, **options),
        1,
    )[0]


@given(st.floats(0.2, 1), seeds)
def test_a_fraction_is_drawn_before_dealing(fraction, seed):
    options = {"partition": "iid", "fraction": fraction, "seed": seed}
    dataset = dealt(made(100), **options)
    x, y = all_rows(dataset)
    kept = x[:, 0].astype(int)
    assert len(kept) == len(set(kept)) == int(np.floor(100 * fraction + 0.5))
    assert np.array_equal(y, kept % 4)
    assert sorted(kept) == sorted(all_rows(dealt(made(100), **options))[0][:, 0])


def test_a_natural_partition_of_a_data_set():
    owner = np.repeat([0, 1, 2, 3], [4, 30, 8, 20])
    dataset = dealt(made(62, owner=owner), partition="natural", min_samples=5)
    assert [len(labels) for labels in labels_by_client(dataset)] == [30, 8, 20]
    assert dataset.description.n_test.tolist() == [6, 2, 4]
    largest = {"choose": "largest"}
    dataset = dealt(made(62, owner=owner), 2, largest, partition="natural")
    assert [len(labels) for labels in labels_by_client(dataset)] == [30, 20]
    with pytest.raises(InputError, match=r"clients.*\b4\b.*\b3 sources"):
        dealt(made(62, owner=owner), 4, partition="natural")


# Dirichlet laws with clients of one size, and with few labels a client.


@given(label_sizes, st.integers(1, 12), st.integers(0, 2**32), st.sampled_from([1e-6, 0.1, 5.0]))
def test_balanced_dirichlet_gives_every_sample_once_and_equally_many(sizes, n_clients, seed, alpha):
    labels = labels_of(sizes, seed)
    assume(len(labels) >= 2 * n_clients)
    rng = np.random.default_rng(seed)
    parts = partitions.balanced_dirichlet(
        labels, n_clients, rng, min_samples=2, dirichlet_alpha=alpha
    )
    check_partition(parts, len(labels), n_clients, 2)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@pytest.mark.parametrize("alpha", [0.1, 0.4, 5.0])
def test_labels_of_balanced_clients_have_the_second_moment_of_the_dirichlet_law(alpha):
    n_clients, n_labels, size = 2000, 10, 20
    labels = np.repeat(np.arange(n_labels), n_clients * size // n_labels)
    rng = np.random.default_rng(0)
    parts = partitions.balanced_dirichlet(labels, n_clients, rng, dirichlet_alpha=alpha)
    counts = np.stack([np.bincount(labels[part], minlength=n_labels) for part in parts])
    assert (counts.sum(axis=1) == size).all()
    # E[c (c-1)] = size (size-1) E[q^2], and E[q^2] of Dir(alpha 1_K).
    moment = (counts * (counts - 1.0)).mean() / (size * (size - 1.0))
    expected = (alpha + 1) / (n_labels * (n_labels * alpha + 1))
    assert moment == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 20.0])
def test_extended_dirichlet_deals_few_labels_by_shares_of_the_dirichlet_law(alpha):
    n_clients, n_labels, each, size = 400, 200, 4, 2000
    labels = np.repeat(np.arange(n_labels), size)
    options = {"classes_per_client": each, "dirichlet_alpha": alpha, "min_samples": 4}
    rng = np.random.default_rng(0)
    parts = partitions.extended_dirichlet(labels, n_clients, rng, **options)
    check_partition(parts, len(labels), n_clients, 4)
    counts = np.stack([np.bincount(labels[part], minlength=n_labels) for part in parts])
    assert ((counts > 0).sum(axis=1) == each).all()
    holders = n_clients * each // n_labels
    assert ((counts > 0).sum(axis=0) == holders).all()
    # Beyond the one sample that each holder has first.
    drawn, size = counts[counts > 0] - 1.0, size - holders
    moment = (drawn * (drawn - 1)).mean() / (size * (size - 1.0))
    expected = (alpha + 1) / (holders * (holders * alpha + 1))
    assert moment == pytest.approx(expected, rel=0.1)


def test_further_dirichlet_partitions_have_names():
    sizes = {}
    for name in ("balanced_dirichlet", "extended_dirichlet"):
        options = {"partition": name, "classes_per_client": 3}
        sizes[name] = dataset_of("digits", 5, **options).description.n_samples
    assert np.ptp(sizes["balanced_dirichlet"]) <= 1 < np.ptp(sizes["extended_dirichlet"])
