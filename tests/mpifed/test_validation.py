"""Validation samples: scored at every evaluation, and no part of training."""

from __future__ import annotations

import csv
import json

import h5py
import numpy as np
import pytest
import torch
from commands import call

import mpifed
from mpifed.data.base import Description, Shards
from mpifed.data.federated_file import Contents, write
from mpifed.data.held_out import HeldOut
from mpifed.data.sources.digits import Digits
from mpifed.data.sources.tags import Tags
from mpifed.mpi.communicator import Alone

METHODS = {
    "fedem": {"local.momentum": 0.9},
    "fedavg": {"participation": 0.5, "local.batch_size": 8},
    "flix": {"algorithm.local_iterations": 30, "dtype": "float64"},
    "fomaml": {},
}
TAGS = {"topics": 1, "vocabulary": 40, "tags": 8, "n_train": 12, "n_val": 5, "n_test": 6}
FLIX_TAGS = {
    "clients": 3,
    "rounds": 2,
    "evaluation.every": 1,
    "algorithm.local_iterations": 20,
    **{f"data.{name}": value for name, value in TAGS.items()},
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
    shards = Tags(3, 0, Alone(), **TAGS).load(np.arange(3), torch.float32)
    description = Tags(3, 0, Alone(), **TAGS).description
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
    assert header[place + 1 : place + 6] == [
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
    assert "evaluation.validation_fraction is 0.0 there, 0.25 here" in outcome.messages[0]
