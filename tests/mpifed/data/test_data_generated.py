"""Data that their owners make: sine curves, counts, Gaussian mixtures, dictionaries."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import dataset_of
from scipy.stats import chi2, kstest, nbinom

from mpifed.errors import InputError

SOURCES = {
    "sine": ("sine", {"split": 2, "n_val": 3, "n_test": 9}),
    "poisson": ("poisson", {"n_train": 8, "n_test": 3}),
    "alike": ("gaussian_mixture", {"n_train": 7, "n_test": 2}),
    "sliced": ("gaussian_mixture", {"sharding": "sorted", "n_train": 7, "n_test": 2}),
    "copied": ("dictionary", {"variant": "homogeneous", "samples": 12, "dim": 4}),
    "clustered": ("dictionary", {"samples": 41, "dim": 4}),
    "tags": ("tags", {"vocabulary": 30, "tags": 9, "n_train": 6, "n_val": 2, "n_test": 4}),
    "shared tags": ("tags", {"vocabulary": 30, "tags": 9, "layout": "divided", "n_test": 4}),
}
ONLINE = ["poisson", "alike", "sliced", "copied", "clustered"]


def make(name: str, n_clients: int = 6, seed: int = 3, **options):
    component, own = SOURCES[name]
    return dataset_of(component, n_clients, seed, **{**own, **options})


def rows_of(split, client: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = slice(*split.offsets[client : client + 2])
    return split.x[rows], split.y[rows]


@given(st.sampled_from(sorted(SOURCES)), st.sets(st.integers(0, 5)).map(sorted), st.integers(0, 3))
@settings(max_examples=24, deadline=None)
def test_a_client_is_the_same_whoever_asks(name, clients, seed):
    whole = make(name, seed=seed).load(np.arange(6), torch.float64)
    part = make(name, seed=seed).load(np.array(clients, np.int64), torch.float64)
    about = make(name, seed=seed).description
    for split in ("train", "val", "test"):
        a, b = getattr(whole, split), getattr(part, split)
        assert np.array_equal(a.counts, getattr(about, f"n_{split}"))
        assert a.x.shape[1:] == about.input_shape and a.y.shape[1:] == about.target_shape
        for position, client in enumerate(clients):
            for x, y in zip(rows_of(a, client), rows_of(b, position), strict=True):
                assert torch.equal(x, y)


@pytest.mark.parametrize("name", SOURCES)
def test_seeds_and_floating_types(name):
    double = make(name).load(np.arange(6), torch.float64).train
    single = make(name).load(np.arange(6), torch.float32).train
    assert single.x.dtype == single.y.dtype == torch.float32
    assert torch.equal(double.x.float(), single.x) and torch.equal(double.y.float(), single.y)
    assert not torch.equal(make(name, seed=4).load(np.arange(6), torch.float64).train.x, double.x)
    assert torch.equal(
        make(name, seed=4, **{}).load(np.arange(6), torch.float64).train.x,
        dataset_of(SOURCES[name][0], 6, **SOURCES[name][1], seed=4)
        .load(np.arange(6), torch.float64)
        .train.x,
    )


@pytest.mark.parametrize("name", ONLINE)
def test_fresh_samples_depend_on_round_and_client_alone(name):
    dataset = make(name)
    whole = dataset.fresh(np.arange(6), 4, 10)
    assert whole.x.dtype == torch.float64 and whole.y.shape == (60, 0)
    assert whole.offsets.tolist() == list(range(0, 61, 10))
    some = make(name).fresh(np.array([1, 4]), 4, 10)
    assert torch.equal(some.x, torch.cat([whole.x[10:20], whole.x[40:50]]))
    assert not torch.equal(dataset.fresh(np.arange(6), 5, 10).x, whole.x)
    assert not torch.equal(whole.x[:10], whole.x[10:20])
    assert len(dataset.fresh(np.arange(2), 0, 0).x) == 0


def test_sine_curves_are_without_noise_and_of_two_families():
    dataset = dataset_of("sine", 40, split=15, n_val=20)
    (a, b), (c, d) = dataset.families
    assert min(a, c) >= 0.1 and max(a, c) <= 5 and min(b, d) >= 0 and max(b, d) <= 2 * np.pi
    shards = dataset.load(np.arange(40), torch.float64)
    assert [len(split.x) for split in (shards.train, shards.val, shards.test)] == [2000, 800, 80000]
    for split in (shards.train, shards.val, shards.test):
        first = np.repeat(np.arange(40) < 15, split.counts)[:, None]
        x = split.x.numpy()
        expected = np.where(first, a * np.sin(x + b), c * np.sin(x + d))
        assert split.y.numpy() == pytest.approx(expected, abs=1e-12)
        assert kstest(x[:, 0], "uniform", (-5, 10)).pvalue > 1e-3
    assert dataset.description.n_outputs == 1
    flat = dataset_of("sine", 2, split=1, amplitude_max=0.1).families
    assert flat[:, 0] == pytest.approx(0.1)


@pytest.mark.parametrize("fresh", [False, True])
def test_counts_are_negative_binomial(fresh):
    a, rate, n = 2.0, 3.0, 20000
    dataset = dataset_of("poisson", 3, 1, theta=1.0, n_train=n, shape=a, rate=rate)
    split = (
        dataset.fresh(np.arange(3), 7, n)
        if fresh
        else dataset.load(np.arange(3), torch.float64).train
    )
    for client, theta in enumerate(dataset.thetas):
        z = rows_of(split, client)[0].numpy()[:, 0]
        # exp(h) ~ Gamma(a, rate), so Z ~ NB(a, rate / (rate + exp(theta))).
        law = nbinom(a, rate / (rate + np.exp(theta)))
        last = int(law.ppf(1 - 50 / n))
        found = np.bincount(np.minimum(z.astype(int), last + 1), minlength=last + 2)
        expected = n * np.append(law.pmf(np.arange(last + 1)), law.sf(last))
        statistic = ((found - expected) ** 2 / expected).sum()
        assert chi2.sf(statistic, last + 1) > 1e-3
    assert len(set(dataset_of("poisson", 3, 1, spread=0).thetas)) == 1


def test_a_sorted_mixture_is_cut_along_its_first_coordinate():
    options = {"n_train": 100, "n_test": 50, "dimension": 3, "n_components": 2}
    alike = dataset_of("gaussian_mixture", 5, 2, **options)
    sliced = dataset_of("gaussian_mixture", 5, 2, sharding="sorted", **options)
    a, b = (one.load(np.arange(5), torch.float64) for one in (alike, sliced))
    # The same points, ordered.
    order = a.train.x[:, 0].argsort(stable=True)
    assert torch.equal(a.train.x[order], b.train.x)
    fresh = sliced.fresh(np.arange(5), 1, 50).x
    for split in (b.test.x, fresh):
        firsts = split[:, 0].reshape(5, 50)
        assert bool((firsts[:-1].amax(1) <= firsts[1:].amin(1)).all())
    # They are cut halfway between training samples of two clients.
    firsts = sliced.fresh(np.arange(5), 1, 5000).x[:, 0].reshape(5, 5000)
    cut = float(b.train.x[199:201, 0].mean())
    assert float(firsts[1].max()) <= cut <= float(firsts[2].min())


def test_a_mixture_has_the_moments_of_its_law():
    dataset = dataset_of("gaussian_mixture", 4, n_train=10000, n_components=3, dimension=2)
    x = dataset.load(np.arange(4), torch.float64).train.x.numpy()
    means = dataset.means
    covariance = np.eye(2) + np.cov(means.T, bias=True)
    error = 5 * np.sqrt(np.diag(covariance) / len(x))
    assert np.all(np.abs(x.mean(axis=0) - means.mean(axis=0)) < error)
    assert np.cov(x.T) == pytest.approx(covariance, rel=0.05, abs=0.1)


def test_samples_are_sparse_combinations_of_the_atoms():
    dataset = dataset_of("dictionary", 4, dim=20, atoms=15, samples=400)
    x = dataset.samples
    assert x.shape == (400, 20) and dataset.non_zeros == 3
    codes, residual, *_ = np.linalg.lstsq(dataset.theta, x.T, rcond=None)
    assert residual.max() < 1e-20
    support = np.abs(codes) > 1e-9
    assert np.all(support.sum(axis=0) == 3)
    assert support.mean(axis=1) == pytest.approx(np.full(15, 0.2), abs=0.1)
    assert kstest(codes[support], "norm").pvalue > 1e-3
    assert kstest(dataset.theta.ravel(), "norm").pvalue > 1e-3


def test_homogeneous_clients_hold_copies_and_heterogeneous_ones_clusters():
    copies = make("copied").load(np.arange(6), torch.float64).train
    assert all(torch.equal(rows_of(copies, 0)[0], rows_of(copies, c)[0]) for c in range(6))
    dataset = make("clustered")
    parts = dataset.load(np.arange(6), torch.float64).train
    assert sorted(parts.counts) == [6, 7, 7, 7, 7, 7]
    whole = {tuple(row) for row in dataset.samples}
    assert {tuple(row) for row in parts.x.numpy()} == whole
    assert dataset.clusters is not None
    owner = np.repeat(np.arange(6), parts.counts)
    assert np.array_equal(dataset.clusters.cell(parts.x.numpy()), owner)
    fresh = dataset.fresh(np.arange(6), 2, 30).x.numpy()
    assert np.array_equal(dataset.clusters.cell(fresh), np.repeat(np.arange(6), 30))


def test_the_paper_s_numbers_of_samples():
    assert (
        dataset_of("dictionary", 20, variant="homogeneous").description.n_train.tolist()
        == [250] * 20
    )
    with pytest.raises(InputError, match=r"clients.*\b6\b.*\b5 samples"):
        dataset_of("dictionary", 6, samples=5)


@pytest.mark.parametrize(("clients", "split"), [(20, 6), (50, 30), (100, 30), (2, 0)])
def test_the_families_of_sine_follow_the_number_of_clients(clients, split):
    assert dataset_of("sine", clients).split == split
