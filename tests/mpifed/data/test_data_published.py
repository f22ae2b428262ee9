# ruff: noqa: NPY002
from __future__ import annotations

import numpy as np
import pytest
import torch

from mpifed.data.sources.synthetic import Setting, Synthetic
from mpifed.mpi.communicator import Alone

SMALL = {"n_components": 3, "dimension": 7, "n_test": 40}


def released(n_clients: int, **options) -> Synthetic:
    return Synthetic(n_clients, 99, Alone(), variant="released", **options)


def by_the_procedure(setting: Setting):
    """The documented procedure, step by step, on numpy's and scikit-learn's global stream."""
    from sklearn.utils import shuffle

    before = np.random.get_state()
    np.random.seed(setting.seed)
    sizes = [min(int(drawn) + 50, 1000) for drawn in np.random.lognormal(4, 2, setting.n_clients)]
    alpha = setting.dirichlet_alpha * np.ones(setting.n_components)
    pi = [np.random.dirichlet(alpha) for _ in sizes]
    theta = np.random.uniform(-1, 1, (setting.n_components, setting.dimension))
    result = []
    for weights, n_train in zip(pi, sizes, strict=True):
        for n in (n_train, setting.n_test):
            counts = np.random.multinomial(n, weights)
            x, y = np.random.uniform(-1, 1, (n, setting.dimension)), np.zeros(n)
            for m in range(setting.n_components):
                eps = np.random.normal(scale=setting.noise, size=counts[m])
                logit = x[0 : counts[m]] @ theta[m] + eps
                y[0 : counts[m]] = np.rint(1 / (1 + np.exp(-logit)))
            result.append(shuffle(x, y))
    np.random.set_state(before)
    return sizes, np.array(pi), theta, result


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
    sizes, pi, theta, expected = by_the_procedure(dataset.setting)
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


def test_the_defect_leaves_constant_labels_and_overwrites_the_first_rows():
    dataset = released(6, **SMALL)
    shards = dataset.load(np.arange(6), torch.float64)
    for client in range(6):
        latent = dataset.latent(client, "train")
        y = shards.train.y[slice(*shards.train.offsets[client : client + 2])].numpy()
        assert np.all(y[latent == -1] == 0)
        counts = np.bincount(latent + 1, minlength=4)[1:]
        x = shards.train.x[slice(*shards.train.offsets[client : client + 2])].numpy()
        logit = (x @ dataset.truth.components.T)[np.arange(len(y)), latent]
        clear = (latent >= 0) & (np.abs(logit) > 1)
        assert np.array_equal(y[clear], (logit > 0)[clear].astype(int))
        assert len(y) - counts.sum() == np.sum(latent == -1)
    effective = np.concatenate([dataset.latent(client, "test") for client in range(6)])
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
