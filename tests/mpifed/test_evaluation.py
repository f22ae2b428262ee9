"""Evaluation: scores of clients, their averages, validation samples, and their files."""

from __future__ import annotations

import csv
import dataclasses
import json
import re

import h5py
import numpy as np
import pytest
import torch
from commands import TINY, call, rows

import mpifed
from mpifed.data.base import Description, Shards
from mpifed.data.derived import HeldOut
from mpifed.data.federated_file import Contents, write
from mpifed.data.sources.flix import Tags
from mpifed.data.sources.mnist import Digits
from mpifed.errors import RunError
from mpifed.method import Predictor
from mpifed.method.checks import checked_predictor
from mpifed.models.linear import linear
from mpifed.models.loss import mixed_nll
from mpifed.mpi.communicator import Alone
from mpifed.training.evaluation import (
    COLUMNS,
    ClientResults,
    bottom_decile,
    score_clients,
    summarise,
    worst_tenth,
)


@pytest.mark.parametrize(("count", "which"), [(1, 0), (9, 0), (10, 0), (11, 1), (20, 1), (21, 2)])
def test_the_bottom_decile_is_the_ceiled_tenth_smallest(count, which):
    values = np.random.default_rng(0).permutation(count) / count
    assert bottom_decile(values) == which / count


@pytest.mark.parametrize(
    ("count", "mean"), [(1, 0), (9, 0), (10, 0), (11, 0.5), (21, 1), (40, 1.5)]
)
def test_the_worst_tenth_is_the_mean_of_the_ceiled_tenth_of_the_clients(count, mean):
    values = np.random.default_rng(0).permutation(count) / count
    assert worst_tenth(values) == pytest.approx(mean / count)


def test_the_column_of_the_worst_tenth_ends_those_of_every_run():
    assert COLUMNS[-2:] == ["state_digest", "test_accuracy_worst10"]
    accuracies, unseen = np.r_[0.2, 0.4, np.full(10, 0.9)], np.zeros(12, bool)
    every = {"n_train": np.ones(12), "n_test": np.ones(12), "unseen": unseen}
    scores = dict.fromkeys(("train_loss", "train_accuracy", "test_loss"), accuracies)
    summary = summarise(results(**every, **scores, test_accuracy=accuracies))
    assert summary["test_accuracy_worst10"] == pytest.approx(0.3)
    assert summary["test_accuracy_p10"] == 0.4


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
    extra = {
        "validation_loss": np.array([2.0, 4.0, np.nan, 9.0]),
        "n_validation": np.array([1, 3, 0, 5]),
        "test_recall_at_5": np.array([0.2, 0.4, np.nan, 1.0]),
        "test_recall_at_5_possible": np.array([4, 1, 0, 2]),
    }
    found = summarise(results(extra=extra), client_weights)
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
    found = score_clients(clients.federation, model, [(clients, Predictor(theta, pi), None)])
    test = clients.shards.test
    for t, (a, b) in enumerate([(0, 7), (7, 19)]):
        x, y = test.x[a:b].numpy(), test.y[a:b].numpy()
        z = x @ theta[t, :, :5].numpy().T + theta[t, :, 5].numpy()
        p = (1 / (1 + np.exp(-z))) @ pi[t].numpy()
        assert found.test_accuracy[t] == ((p > 0.5) == y).mean()
        assert found.test_loss[t] == pytest.approx(-np.log(np.where(y, p, 1 - p)).mean())
    assert found.n_test.tolist() == [7, 12] and found.n_train.tolist() == [4, 9]
    assert np.array_equal(found.mixture, pi)
    assert "test_nll" not in found.extra


def test_regressions_report_the_loss_of_what_is_deployed_and_the_likelihood_apart(make_clients):
    clients, description = make_clients([4, 9])
    targets = torch.from_numpy(np.random.default_rng(1).normal(size=(19, 1)))
    test = dataclasses.replace(clients.shards.test, y=targets)
    train = dataclasses.replace(clients.shards.train, y=targets[:13])
    shards = dataclasses.replace(clients.shards, train=train, test=test)
    clients = dataclasses.replace(clients, shards=shards)
    model = linear(dataclasses.replace(description, task="regression", n_classes=1))
    theta = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 6)))
    pi = torch.tensor([[0.2, 0.8], [0.6, 0.4]], dtype=torch.float64)
    found = score_clients(clients.federation, model, [(clients, Predictor(theta, pi), None)])
    for t, (a, b) in enumerate([(0, 7), (7, 19)]):
        x, y = test.x[a:b].numpy(), targets[a:b, 0].numpy()
        z = x @ theta[:, :5].numpy().T + theta[:, 5].numpy()
        deployed = (z @ pi[t].numpy() - y) ** 2
        likelihood = np.exp(-((z - y[:, None]) ** 2)) @ pi[t].numpy()
        assert found.test_loss[t] == pytest.approx(deployed.mean())
        assert found.extra["test_nll"][t] == pytest.approx(-np.log(likelihood).mean())
    summary = summarise(found)
    assert summary["test_loss"] == pytest.approx((found.test_loss @ [7, 12]) / 19)
    assert summary["test_nll"] == pytest.approx((found.extra["test_nll"] @ [7, 12]) / 19)
    assert summary["train_nll"] == pytest.approx((found.extra["train_nll"] @ [4, 9]) / 13)
    assert np.isnan(found.test_accuracy).all()


REGRESSION = ("synthetic-fedem", "data.name=sine", "model={name: mlp, hidden: [4]}", "clients=4")
TAGS = ("tags-fomaml", "clients=4")


@pytest.mark.parametrize(
    ("words", "components", "added"),
    [
        (REGRESSION, 2, ["train_nll", "test_nll"]),
        (REGRESSION, 1, []),
        (
            (*REGRESSION, "evaluation.validation_fraction=0.3"),
            2,
            ["validation_loss", "validation_accuracy", "train_nll", "test_nll", "validation_nll"],
        ),
        (TAGS, 2, ["train_recall_at_5", "test_recall_at_5", "train_nll", "test_nll"]),
        (("digits-fedem", "clients=4"), 2, []),
    ],
)
def test_likelihoods_have_columns_where_they_are_no_losses(
    words, components, added, tmp_path, capfd
):
    words = [*words, "algorithm=fedem", f"algorithm.n_components={components}", "rounds=1"]
    words += ["data.split=2"] if words[1] == "data.name=sine" else []
    done = call([*words, "--quiet", "--output", tmp_path / "run"], capfd)
    assert done.code == 0, done.err
    last = rows(tmp_path / "run")[-1]
    assert [*last][14:] == [*added, "mixture_entropy"]
    with h5py.File(tmp_path / "run" / "clients.h5") as file:
        kept = {name for name in file if name.endswith("_nll")}
        assert kept == {name for name in added if name.endswith("_nll")}
        for name in kept:
            counts = file[f"n_{name.partition('_')[0]}"]
            assert float(last[name]) == pytest.approx(np.average(file[name], weights=counts))
            assert last[name] != last[name.replace("nll", "loss")]


P, N = 6, 3
SHAPES = {
    "several models and no mixture": ((2, P), None),
    "other parameters": ((1, P - 1), None),
    "no models": ((0, P), (N, 0)),
    "a mixture of other models": ((2, P), (N, 3)),
}


def predictor(parameters, mixture=None):
    """Models of zeros, mixed in equal parts."""
    weights = None if mixture is None else torch.ones(mixture) / max(1, mixture[-1])
    return Predictor(torch.zeros(parameters), weights)


@pytest.mark.parametrize("case", SHAPES)
def test_predictors_of_other_shapes_are_refused(case):
    with pytest.raises(RunError) as refused:
        checked_predictor(None, "deploy", predictor(*SHAPES[case]), N, P)
    assert str(SHAPES[case][0]) in str(refused.value)
    assert re.search(r"\(M, 6\).*\(3, M, 6\)", str(refused.value))


@pytest.mark.parametrize(
    "shapes",
    [((1, P), None), ((1, P), (N, 1)), ((4, P), (N, 4)), ((N, 1, P), None), ((N, 4, P), (N, 4))],
)
def test_predictors_of_the_documented_shapes_are_scored(shapes, make_clients):
    clients, description = make_clients([4, 9, 2], dtype=torch.float32)
    served = [(clients, predictor(*shapes), None)]
    found = score_clients(clients.federation, linear(description), served)
    # Models of zeros give every label the probability 1/2.
    assert found.test_loss == pytest.approx(np.full(3, np.log(2)), rel=1e-6)


# Validation samples: scored at every evaluation, and no part of training.


METHODS = {
    "fedem": {"local.momentum": 0.9},
    "fedavg": {"participation": 0.5, "local.batch_size": 8},
    "flix": {"algorithm.local_iterations": 30, "dtype": "float64"},
    "fomaml": {},
}
TAGS_VALIDATION = {"topics": 1, "vocabulary": 40, "tags": 8, "n_train": 12, "n_val": 5, "n_test": 6}
FLIX_TAGS = {
    "clients": 3,
    "rounds": 2,
    "evaluation.every": 1,
    "algorithm.local_iterations": 20,
    **{f"data.{name}": value for name, value in TAGS_VALIDATION.items()},
}


@pytest.mark.parametrize(
    ("method", "exchange"),
    [
        *((method, "server") for method in METHODS),
        ("fedem", "gossip"),
        *(
            pytest.param(method, "gossip", marks=pytest.mark.slow)
            for method in METHODS
            if method != "fedem"
        ),
    ],
)
def test_training_is_that_on_data_without_the_samples_held_out(method, exchange, tmp_path):
    """A file whose training samples are those that stay, and whose test samples those held out."""
    stored = stored_without_held_out(tmp_path / "stays.h5", 6, 0.3, seed=5)
    some = {"clients": 6, "rounds": 3, "seed": 5, "evaluation.every": 1, "exchange": exchange}
    some |= {"algorithm": method, **METHODS[method]}
    whole = mpifed.run(
        "digits-fedem", output=tmp_path / "whole", **{"evaluation.validation_fraction": 0.3}, **some
    )
    without = mpifed.run("digits-fedem", output=tmp_path / "without", data=stored, **some)
    ours, theirs = whole.metrics, without.metrics
    for column in ("state_digest", "train_loss", "up_bits"):
        assert np.array_equal(ours[column], theirs[column]), column
    for column in ("loss", "accuracy"):
        assert np.array_equal(ours[f"validation_{column}"], theirs[f"test_{column}"])
        assert np.isfinite(ours[f"validation_{column}"]).all()
        of_clients = whole.clients[f"validation_{column}"]
        assert np.array_equal(of_clients, without.clients[f"test_{column}"])
    assert np.array_equal(whole.clients["n_train"], without.clients["n_train"])
    assert np.array_equal(whole.clients["n_validation"], without.clients["n_test"])


def stored_without_held_out(path, n_clients, fraction, seed):
    dataset = Digits(n_clients, seed, Alone())
    held = HeldOut(dataset, fraction, seed)
    shards = held.load(np.arange(n_clients), torch.float32)
    about, none = held.description, np.zeros(n_clients, np.int64)
    description = Description(
        about.source, about.input_shape, about.n_classes, about.n_train, none, about.n_val
    )
    empty = type(shards.val)(shards.val.x[:0], shards.val.y[:0], np.zeros(n_clients + 1, np.int64))
    moved = Shards(shards.client_ids, shards.train, empty, shards.val)
    write(path, Contents(description, "natural", seed), [moved], {})
    return {"name": "federated", "path": str(path)}


def test_the_samples_that_data_have_for_validation_are_scored(tmp_path):
    """Training is as without; a second run whose test samples they are has the same scores."""
    plain = mpifed.run("flix-tags", output=tmp_path / "plain", **FLIX_TAGS)
    scored = mpifed.run(
        "flix-tags",
        output=tmp_path / "scored",
        **FLIX_TAGS,
        **{"evaluation.validation_split": True},
    )
    assert np.array_equal(plain.metrics["state_digest"], scored.metrics["state_digest"])
    new = {"validation_loss", "validation_accuracy", "validation_recall_at_5"}
    assert {*scored.metrics} - {*plain.metrics} == new
    assert np.isnan(scored.metrics["validation_accuracy"]).all()
    shards = Tags(3, 0, Alone(), **TAGS_VALIDATION).load(np.arange(3), torch.float32)
    description = Tags(3, 0, Alone(), **TAGS_VALIDATION).description
    moved = Shards(shards.client_ids, shards.train, shards.test, shards.val)
    about = Description(
        "tags", (41,), 8, description.n_train, description.n_test, description.n_val, "multi_label"
    )
    write(tmp_path / "moved.h5", Contents(about, "natural", 0), [moved], {})
    options = {k: v for k, v in FLIX_TAGS.items() if not k.startswith("data.")}
    data = {"name": "federated", "path": str(tmp_path / "moved.h5")}
    other = mpifed.run("flix-tags", output=tmp_path / "other", data=data, **options)
    for measure in ("loss", "recall_at_5"):
        expected = other.metrics[f"test_{measure}"]
        assert np.array_equal(scored.metrics[f"validation_{measure}"], expected)
        assert np.isfinite(expected).all()


def test_columns_and_files_are_what_they_were_without(tmp_path):
    mpifed.run("flix-tags", output=tmp_path / "plain", **FLIX_TAGS)
    text = (tmp_path / "plain" / "metrics.csv").read_text()
    assert "validation" not in text
    assert "validation" not in (tmp_path / "plain" / "summary.json").read_text()
    with h5py.File(tmp_path / "plain" / "clients.h5") as file:
        assert not any("validation" in name for name in file)


def test_what_is_written_where_samples_are_held_out(tmp_path):
    fraction = {"evaluation.validation_fraction": 0.25}
    result = mpifed.run("flix-tags", output=tmp_path / "run", **FLIX_TAGS, **fraction)
    with (tmp_path / "run" / "metrics.csv").open() as file:
        header = next(csv.reader(file))
    place = header.index("state_digest")
    assert header[place + 1 : place + 7] == [
        "test_accuracy_worst10",
        "validation_loss",
        "validation_accuracy",
        "train_recall_at_5",
        "test_recall_at_5",
        "validation_recall_at_5",
    ]
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["validation_loss"] == result.metrics["validation_loss"][-1]
    assert summary["validation_accuracy"] is None
    assert (result.clients["n_validation"] == 3).all()
    assert (result.clients["n_train"] == 9).all()
    loss, n = result.clients["validation_loss"], result.clients["n_validation"]
    assert summary["validation_loss"] == pytest.approx((loss * n).sum() / n.sum())


def test_optima_of_other_training_samples_are_refused(tmp_path, capfd):
    mpifed.run("flix-tags", output=tmp_path / "all", **FLIX_TAGS)
    words = [f"{key}={value}" for key, value in FLIX_TAGS.items()]
    words += [f"algorithm.optima_from={tmp_path / 'all'}", "evaluation.validation_fraction=0.25"]
    outcome = call(["flix-tags", *words, "--output", tmp_path / "held"], capfd)
    assert outcome.code == 2
    assert re.search("evaluation.validation_fraction.* 0.0.* 0.25", outcome.messages[0])


@pytest.mark.parametrize("models", range(1, 7))
def test_a_mixtures_likelihood_has_the_bits_of_a_sum_of_each_sample_alone(models):
    generator = torch.Generator().manual_seed(models)
    for size in (1, 3, 7, 33, 250):
        losses = 90 * torch.rand(models, size, generator=generator)
        losses[0, ::3] = torch.inf
        mixture = torch.rand(models, generator=generator)
        mixture[-1] = 0
        joint = torch.log(mixture)[:, None] - losses
        alone = torch.stack([-torch.logsumexp(joint[:, i].clone(), 0) for i in range(size)])
        assert torch.equal(mixed_nll(losses, mixture), alone)
