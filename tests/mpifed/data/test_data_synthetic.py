"""The synthetic data of FedEM in three variants, against their laws and the published code."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import dataset_of
from scipy.stats import norm

from mpifed.config.configuration import resolve
from mpifed.config.experiments import read_experiment
from mpifed.dataset import stream
from mpifed.mpi.communicator import Alone
from mpifed.training.build import make_dataset

BOTH = pytest.mark.parametrize("variant", ["paper", "corrected"])


def components_of(dataset: Any, client: int, split: str) -> np.ndarray:
    """The component of each of a client's samples; -1 for constant labels."""
    if dataset.variant == "released":
        *_, latent = by_the_procedure(dataset.setting)
        return latent[2 * client + (split == "test")]
    counts = dataset.description.n_train if split == "train" else dataset.description.n_test
    setting, mixture = dataset.setting, dataset.truth.mixture[client]
    draws = stream(setting.seed, f"synthetic/{split}/labels", client=client)
    return draws.choice(setting.n_components, int(counts[client]), p=mixture)


def make(n_clients: int, run_seed: int = 0, **options) -> Any:
    return dataset_of("synthetic", n_clients, run_seed, **options)


def rows_of(split, client: int):
    rows = slice(*split.offsets[client : client + 2])
    return split.x[rows], split.y[rows]


@given(
    st.sampled_from(["paper", "corrected"]),
    st.sets(st.integers(0, 11)).map(sorted),
    st.integers(0, 5),
)
@settings(max_examples=25, deadline=None)
def test_a_client_is_the_same_whoever_asks(variant, clients, seed):
    options = {"variant": variant, "dimension": 5, "n_test": 30}
    whole = make(12, seed, **options).load(np.arange(12), torch.float32)
    # Fewer clients in the federation change nothing for those that are left, either.
    some = make(max(clients, default=0) + 1, seed, **options).load(
        np.array(clients, np.int64), torch.float32
    )
    for split, part in ((whole.train, some.train), (whole.val, some.val), (whole.test, some.test)):
        assert len(part.offsets) == len(clients) + 1
        for position, client in enumerate(clients):
            expected, found = rows_of(split, client), rows_of(part, position)
            assert torch.equal(expected[0], found[0]) and torch.equal(expected[1], found[1])


@BOTH
def test_both_floating_types_see_the_same_data(variant):
    dataset = make(5, variant=variant, n_test=1100)
    single = dataset.load(np.arange(5), torch.float32)
    double = dataset.load(np.arange(5), torch.float64)
    for a, b in ((single.train, double.train), (single.test, double.test)):
        assert a.x.dtype == torch.float32 and b.x.dtype == torch.float64
        assert torch.equal(a.x.double(), b.x) and torch.equal(a.y, b.y)


def test_training_samples_do_not_depend_on_the_size_of_the_test_sample():
    few = make(4, n_test=1).load(np.arange(4), torch.float32)
    many = make(4, n_test=77).load(np.arange(4), torch.float32)
    assert torch.equal(few.train.x, many.train.x) and torch.equal(few.train.y, many.train.y)


@pytest.mark.parametrize(("dimension", "n_test"), [(1, 1), (1, 1025), (3, 1023), (2, 2049)])
def test_every_sample_is_drawn_whatever_the_sizes(dimension, n_test):
    test = make(2, dimension=dimension, n_test=n_test).load(np.arange(2), torch.float64).test
    assert test.x.shape == (2 * n_test, dimension)
    assert len(torch.unique(test.x)) > 0.99 * test.x.numel()


def test_x_is_uniform_on_the_box_in_steps_that_float32_holds():
    x = make(1, n_test=20000).load(np.arange(1), torch.float64).test.x.numpy()
    assert x.min() >= -1 and x.max() < 1
    assert np.array_equal(x * 2**23, np.round(x * 2**23))
    n = x.size
    assert abs(x.mean()) < 5 * math.sqrt(1 / 3 / n)
    assert abs((x**2).mean() - 1 / 3) < 5 * math.sqrt(4 / 45 / n)
    assert abs(np.corrcoef(x[:, 0], x[:, 1])[0, 1]) < 5 / math.sqrt(len(x))


def test_sizes_weights_and_components_follow_the_text():
    dataset = make(20000, dimension=1000, n_components=4, dirichlet_alpha=0.4, n_test=1)
    sizes = dataset.description.n_train
    assert sizes.min() >= 50 and sizes.max() == 1000
    for limit in (100, 500, 1000):
        # 50 + floor(m) < limit exactly if m < limit - 50.
        expected = norm.cdf((math.log(limit - 50) - 4) / 2)
        assert np.mean(sizes < limit) == pytest.approx(expected, abs=0.015)
    pi, theta = dataset.truth.mixture, dataset.truth.components
    assert pi.sum(axis=1) == pytest.approx(1.0)
    assert pi.mean(axis=0) == pytest.approx([0.25] * 4, abs=0.015)
    assert (pi**2).mean() == pytest.approx(1.4 / (4 * 2.6), rel=0.03)
    assert np.abs(theta).max() <= 1 and theta.std() == pytest.approx(1 / math.sqrt(3), abs=0.02)
    assert not dataset.description.n_val.any()
    assert dataset.description.n_test.tolist() == [1] * 20000


@BOTH
def test_components_are_drawn_by_the_clients_own_weights(variant):
    dataset = make(40, variant=variant, n_test=2000)
    for client in range(40):
        pi = dataset.truth.mixture[client]
        counts = np.bincount(components_of(dataset, client, "test"), minlength=3)
        assert np.all(np.abs(counts - 2000 * pi) <= 5 * np.sqrt(2000 * pi * (1 - pi)) + 1e-9 + 3)


def logits_and_labels(dataset: Any, n_clients: int) -> tuple[np.ndarray, np.ndarray]:
    test = dataset.load(np.arange(n_clients), torch.float64).test
    latent = np.concatenate([components_of(dataset, client, "test") for client in range(n_clients)])
    theta = dataset.truth.components[latent]
    return np.einsum("nd,nd->n", test.x.numpy(), theta), test.y.numpy()


def z_scores(y: np.ndarray, p: np.ndarray, logit: np.ndarray) -> list[float]:
    """Of the number of ones, and of their alignment with the logit and with its size."""
    weights = (np.ones_like(p), logit, np.abs(logit) - np.abs(logit).mean(), np.sign(logit))
    return [float((w * (y - p)).sum() / np.sqrt((w**2 * p * (1 - p)).sum())) for w in weights]


@pytest.mark.parametrize("noise", [None, 0.0, 3.0])
def test_labels_of_the_paper_are_bernoulli_of_the_noisy_sigmoid(noise):
    dataset = make(10, noise=noise, dimension=20, n_test=5000)
    logit, y = logits_and_labels(dataset, 10)
    nodes, weights = np.polynomial.hermite_e.hermegauss(61)
    deviation = 1.0 if noise is None else noise
    noisy = logit[:, None] + deviation * nodes
    p = (1 / (1 + np.exp(-noisy))) @ weights / weights.sum()
    assert np.abs(z_scores(y, p, logit)).max() < 4.5


def test_labels_of_the_corrected_variant_are_a_noisy_threshold():
    logit, y = logits_and_labels(make(10, variant="corrected", dimension=2, n_test=5000), 10)
    p = np.clip(norm.cdf(logit / 0.1), 1e-12, 1 - 1e-12)
    assert np.abs(z_scores(y, p, logit)).max() < 4.5
    logit, y = logits_and_labels(make(4, variant="corrected", noise=0.0, n_test=500), 4)
    assert np.array_equal(y, (logit > 0).astype(int))


def test_huge_logits_do_no_harm():
    with np.errstate(all="raise", under="ignore"):
        shards = make(1, noise=1e6, n_test=100).load(np.arange(1), torch.float32)
    assert set(shards.test.y.tolist()) == {0, 1}


@BOTH
def test_seeds(variant):
    def data(run_seed: int, **options):
        dataset = make(2, run_seed, variant=variant, n_test=10, **options)
        return dataset.load(np.arange(2), torch.float32).test.x

    assert torch.equal(data(3), data(0, seed=3))
    assert not torch.equal(data(3), data(4))


def test_paper_and_corrected_share_all_but_the_labels():
    paper, corrected = (make(3, variant=name, n_test=50) for name in ("paper", "corrected"))
    a, b = (dataset.load(np.arange(3), torch.float32) for dataset in (paper, corrected))
    assert torch.equal(a.train.x, b.train.x) and not torch.equal(a.train.y, b.train.y)
    assert np.array_equal(components_of(paper, 1, "train"), components_of(corrected, 1, "train"))


@pytest.mark.parametrize("alpha", [1e-6, 1e9])
def test_extreme_weights_are_still_weights(alpha):
    dataset = make(200, dirichlet_alpha=alpha, n_test=2)
    assert dataset.truth.mixture.sum(axis=1) == pytest.approx(1.0)
    assert len(dataset.load(np.arange(200), torch.float32).test.y) == 400


# ruff: noqa: NPY002


SMALL = {"n_components": 3, "dimension": 7, "n_test": 40}


def released(n_clients: int, **options) -> Any:
    return dataset_of("synthetic", n_clients, 99, variant="released", **options)


def by_the_procedure(setting: Any):
    """The documented procedure, step by step, on numpy's and scikit-learn's global stream."""
    from sklearn.utils import shuffle

    before = np.random.get_state()
    np.random.seed(setting.seed)
    sizes = [min(int(drawn) + 50, 1000) for drawn in np.random.lognormal(4, 2, setting.n_clients)]
    alpha = setting.dirichlet_alpha * np.ones(setting.n_components)
    pi = [np.random.dirichlet(alpha) for _ in sizes]
    theta = np.random.uniform(-1, 1, (setting.n_components, setting.dimension))
    result, latent = [], []
    for weights, n_train in zip(pi, sizes, strict=True):
        for n in (n_train, setting.n_test):
            counts = np.random.multinomial(n, weights)
            x, y = np.random.uniform(-1, 1, (n, setting.dimension)), np.zeros(n)
            component = np.full(n, -1)
            for m in range(setting.n_components):
                eps = np.random.normal(scale=setting.noise, size=counts[m])
                logit = x[0 : counts[m]] @ theta[m] + eps
                y[0 : counts[m]] = np.rint(1 / (1 + np.exp(-logit)))
                component[0 : counts[m]] = m
            x, y, component = shuffle(x, y, component)
            result.append((x, y))
            latent.append(component)
    np.random.set_state(before)
    return sizes, np.array(pi), theta, result, latent


@pytest.mark.parametrize(
    "options",
    [
        SMALL,
        SMALL | {"n_components": 1},
        SMALL | {"n_components": 5, "dirichlet_alpha": 3.0, "noise": 1.5, "seed": 3},
        SMALL | {"dimension": 150, "n_test": 333},
    ],
)
def test_every_bit_is_that_of_the_published_procedure(options):
    dataset = released(9, **options)
    sizes, pi, theta, expected, _ = by_the_procedure(dataset.setting)
    assert dataset.description.n_train.tolist() == sizes
    assert np.array_equal(dataset.truth.mixture, pi)
    assert np.array_equal(dataset.truth.components, theta)
    shards = dataset.load(np.arange(9), torch.float64)
    for split, parts in ((shards.train, expected[::2]), (shards.test, expected[1::2])):
        assert np.array_equal(split.x.numpy(), np.concatenate([x for x, _ in parts]))
        assert np.array_equal(split.y.numpy(), np.concatenate([y for _, y in parts]))
        assert split.counts.tolist() == [len(x) for x, _ in parts]
    assert len(shards.val.x) == 0 and shards.val.offsets.tolist() == [0] * 10
    rounded = dataset.load(np.arange(9), torch.float32)
    assert torch.equal(rounded.train.x, shards.train.x.float())
    assert torch.equal(rounded.test.y, shards.test.y)


def test_facts_of_the_published_benchmark():
    dataset = released(300, n_test=100)
    assert dataset.seed == 12345
    assert dataset.description.n_train[:6].tolist() == [86, 192, 69, 67, 1000, 936]
    assert dataset.description.n_train.sum() == 67758
    assert dataset.truth.components.shape == (3, 150)
    assert dataset.truth.components[0, :3] == pytest.approx(
        [0.26606615, -0.54122914, 0.76502847], abs=5e-9
    )
    assert dataset.truth.mixture[0] == pytest.approx([0.186, 0.025, 0.789], abs=5e-4)
    labels = dataset.load(np.arange(300), torch.float32).test.y
    # 0.5 without the defect. 0.633 with n_test = 5000, which is another continuation of the stream.
    assert float((labels == 0).double().mean()) == pytest.approx(0.633, abs=0.008)


@pytest.mark.parametrize("name", ["released", "unseen", "time", "sampling"])
def test_the_data_of_the_papers_tables_have_its_number_of_training_samples(name):
    # Table 1 of Marfoq et al. 2021: 1,570,507 samples, of which each of 300 clients tests on 5000.
    configuration = resolve(read_experiment(f"synthetic-{name}"))
    dataset = make_dataset(configuration, Alone())
    assert dataset.description.n_train.sum() == 1_570_507 - 300 * 5000
    assert dataset.description.n_test.tolist() == [5000] * 300


def test_the_defect_leaves_constant_labels_and_overwrites_the_first_rows():
    dataset = released(6, **SMALL)
    shards = dataset.load(np.arange(6), torch.float64)
    for client in range(6):
        latent = components_of(dataset, client, "train")
        y = shards.train.y[slice(*shards.train.offsets[client : client + 2])].numpy()
        assert np.all(y[latent == -1] == 0)
        counts = np.bincount(latent + 1, minlength=4)[1:]
        x = shards.train.x[slice(*shards.train.offsets[client : client + 2])].numpy()
        logit = (x @ dataset.truth.components.T)[np.arange(len(y)), latent]
        clear = (latent >= 0) & (np.abs(logit) > 1)
        assert np.array_equal(y[clear], (logit > 0)[clear].astype(int))
        assert len(y) - counts.sum() == np.sum(latent == -1)
    effective = np.concatenate([components_of(dataset, client, "test") for client in range(6)])
    assert np.mean(effective == -1) > 0.05


def test_numpys_global_stream_is_left_alone():
    before = np.random.get_state()[1].copy()
    released(3, **SMALL).load(np.arange(3), torch.float32)
    assert np.array_equal(before, np.random.get_state()[1])


def test_any_clients_are_read_from_the_one_stream():
    dataset = released(12, **SMALL)
    whole = dataset.load(np.arange(12), torch.float32)
    some = dataset.load(np.array([2, 3, 7, 11]), torch.float32)
    for split, part in ((whole.train, some.train), (whole.test, some.test)):
        rows = np.concatenate(
            [np.arange(*split.offsets[client : client + 2]) for client in (2, 3, 7, 11)]
        )
        assert torch.equal(part.x, split.x[rows]) and torch.equal(part.y, split.y[rows])
    nobody = dataset.load(np.arange(0), torch.float32)
    assert nobody.train.x.shape == (0, 7) and nobody.test.offsets.tolist() == [0]
