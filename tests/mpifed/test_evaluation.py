from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from commands import TINY, call, rows

from mpifed.algorithms.base import Predictor
from mpifed.models.linear import linear
from mpifed.training.scores import ClientResults, bottom_decile, score_clients, summarise


@pytest.mark.parametrize(("count", "which"), [(1, 0), (9, 0), (10, 0), (11, 1), (20, 1), (21, 2)])
def test_the_bottom_decile_is_the_ceiled_tenth_smallest(count, which):
    values = np.random.default_rng(0).permutation(count) / count
    assert bottom_decile(values) == which / count


def results(**changes):
    base = {
        "n_train": np.array([10, 30, 60, 100]),
        "n_test": np.array([5, 0, 15, 20]),
        "train_loss": np.array([1.0, 2.0, 3.0, 4.0]),
        "train_accuracy": np.array([0.1, 0.2, 0.3, 0.4]),
        "test_loss": np.array([1.0, np.nan, 3.0, 4.0]),
        "test_accuracy": np.array([0.5, np.nan, 0.7, 0.9]),
        "unseen": np.array([False, False, False, True]),
        "mixture": None,
    }
    return ClientResults(**{**base, **changes})


def test_averages_are_weighted_by_the_samples_of_the_split():
    summary = summarise(results())
    assert summary["train_loss"] == pytest.approx((10 + 60 + 180) / 100)
    assert summary["test_accuracy"] == pytest.approx((5 * 0.5 + 15 * 0.7) / 20)
    assert summary["test_accuracy_min"] == 0.5 and summary["test_accuracy_p10"] == 0.5
    assert summary["test_accuracy_std"] == pytest.approx(0.1)
    assert summary["unseen_test_accuracy"] == 0.9 and summary["unseen_train_accuracy"] == 0.4


def test_averages_may_be_weighted_by_training_samples_or_alike():
    by_train = summarise(results(), "train")
    assert by_train["test_accuracy"] == pytest.approx((10 * 0.5 + 60 * 0.7) / 70)
    assert by_train["test_loss"] == pytest.approx((10 * 1 + 60 * 3) / 70)
    assert by_train["train_loss"] == summarise(results())["train_loss"]
    uniform = summarise(results(), "uniform")
    assert uniform["test_accuracy"] == pytest.approx(0.6)
    assert uniform["train_loss"] == pytest.approx(2)
    for name in ("test_accuracy_p10", "test_accuracy_min", "test_accuracy_std"):
        assert by_train[name] == uniform[name] == summarise(results())[name]


@pytest.mark.parametrize("client_weights", ["scored", "train", "uniform"])
def test_recalls_and_validation_are_averaged_alike(client_weights):
    more = {
        "validation_loss": np.array([2.0, 4.0, np.nan, 9.0]),
        "n_validation": np.array([1, 3, 0, 5]),
        "test_recall_at_5": np.array([0.2, 0.4, np.nan, 1.0]),
        "test_recall_at_5_possible": np.array([4, 1, 0, 2]),
    }
    found = summarise(results(more=more), client_weights)
    weights = {"scored": ([1, 3], [4, 1]), "train": ([10, 30],) * 2, "uniform": ([1, 1],) * 2}
    validation, recall = weights[client_weights]
    assert found["validation_loss"] == pytest.approx(np.average([2, 4], weights=validation))
    assert found["test_recall_at_5"] == pytest.approx(np.average([0.2, 0.4], weights=recall))


def test_a_run_writes_the_averages_asked_for(tmp_path, capfd):
    tables = {}
    for name in ("scored", "train", "uniform"):
        words = [*TINY, f"evaluation.client_weights={name}", "--output", tmp_path / name]
        assert call(words, capfd).code == 0
        tables[name] = rows(tmp_path / name)
    with h5py.File(tmp_path / "train" / "clients.h5") as file:
        n_train, accuracy = file["n_train"][()], file["test_accuracy"][()]
    last = {name: table[-1] for name, table in tables.items()}
    by_train = float(last["train"]["test_accuracy"])
    assert by_train == pytest.approx(np.average(accuracy, weights=n_train))
    # All clients have as many test samples.
    assert last["scored"]["test_accuracy"] == last["uniform"]["test_accuracy"]
    assert float(last["uniform"]["test_accuracy"]) == pytest.approx(accuracy.mean())
    assert len({row["state_digest"] for row in last.values()}) == 1


def test_what_does_not_apply_is_none():
    nobody = {"n_test": np.zeros(4, int), "test_loss": np.full(4, np.nan)}
    summary = summarise(
        results(**nobody, test_accuracy=np.full(4, np.nan), unseen=np.zeros(4, bool))
    )
    assert summary["test_accuracy"] is None and summary["test_accuracy_p10"] is None
    assert "unseen_test_accuracy" not in summary


def test_clients_are_scored_on_their_own_samples_with_their_own_mixture(make_clients):
    clients, description = make_clients([4, 9])
    model = linear(description)
    theta = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 2, 6)))
    pi = torch.tensor([[0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)
    found = score_clients(clients.federation, model, [(clients, Predictor(theta, pi))])
    test = clients.shards.test
    for t, (a, b) in enumerate([(0, 7), (7, 19)]):
        x, y = test.x[a:b].numpy(), test.y[a:b].numpy()
        z = x @ theta[t, :, :5].numpy().T + theta[t, :, 5].numpy()
        p = (1 / (1 + np.exp(-z))) @ pi[t].numpy()
        assert found.test_accuracy[t] == ((p > 0.5) == y).mean()
        assert found.test_loss[t] == pytest.approx(-np.log(np.where(y, p, 1 - p)).mean())
    assert found.n_test.tolist() == [7, 12] and found.n_train.tolist() == [4, 9]
    assert np.array_equal(found.mixture, pi)
