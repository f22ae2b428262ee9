"""Scores of ``evaluation.metrics``: their formulas, of each client and of all, on any ranks."""

from __future__ import annotations

import re
import sys

import numpy as np
import pytest
import torch
from commands import TINY, call

import mpifed
from mpifed.models.loss import likeliest, probabilities
from mpifed.testing import find_item, run_rounds

NAMES = ["balanced_accuracy", "f1", "auc", "confusion"]
METRICS = {"evaluation.metrics": NAMES}
DIGITS = {"clients": 5, "rounds": 2, "evaluation.every": 1}


def score(name, *values):
    return find_item("metric", name)(*values)


def counts_of(y_true, y_pred, n_classes):
    counts = np.zeros((n_classes, n_classes), int)
    np.add.at(counts, (y_true, y_pred), 1)
    return counts


def pairs_won(positive, values):
    """The share of pairs that the positive one wins, ties counting half, pair by pair."""
    a, b = values[positive][:, None], values[~positive][None]
    return ((a > b) + (a == b) / 2).mean()


# Formulas.


def test_two_labels_by_hand():
    counts = np.array([[50, 10], [5, 15]])  # TP = 15, FP = 10, FN = 5
    assert score("balanced_accuracy", counts) == pytest.approx((50 / 60 + 15 / 20) / 2)
    assert score("f1", counts) == pytest.approx(2 * 15 / (2 * 15 + 10 + 5))
    labels, values = np.array([0, 0, 0, 1, 1]), np.array([0.1, 0.5, 0.9, 0.5, 0.7])
    assert score("auc", labels, values) == (1 + 0.5 + 0 + 1 + 1 + 0) / 6
    assert score("auc", labels, np.zeros(5)) == 0.5


def test_several_labels_by_hand_without_those_that_are_absent():
    counts = np.array([[3, 1, 0, 0], [0, 2, 0, 2], [0, 0, 0, 0], [1, 0, 1, 2]])
    assert score("balanced_accuracy", counts) == pytest.approx((3 / 4 + 2 / 4 + 2 / 4) / 3)
    assert score("f1", counts) == pytest.approx((6 / 8 + 4 / 7 + 0 + 4 / 8) / 4)
    labels = np.array([0, 0, 1, 3])
    values = np.array(
        [[0.6, 0.2, 0.1, 0.1], [0.2, 0.6, 0.1, 0.1], [0.2, 0.5, 0, 0.3], [0, 0, 0, 1]]
    )
    # Of 0: 2.5 + 1 of 4 pairs. Of 1: 1 + 1 of 3. Of 3: all.
    assert score("auc", labels, values) == pytest.approx((3.5 / 4 + 2 / 3 + 1) / 3)


@pytest.mark.parametrize("name", ["balanced_accuracy", "auc"])
def test_a_client_with_one_label_has_no_score_that_compares_two(name):
    negative, one = np.array([[7, 2], [0, 0]]), (np.zeros(9, int), np.linspace(0, 1, 9))
    found = score(name, *(one if name == "auc" else [negative]))
    assert found == pytest.approx(7 / 9) if name == "balanced_accuracy" else np.isnan(found)


@pytest.mark.parametrize("n_classes", [2, 5])
def test_scores_are_those_of_other_programs(n_classes):
    metrics = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(n_classes)
    y, shares = random.integers(n_classes, size=300), random.dirichlet(np.ones(n_classes), 300)
    shares = shares.round(1) / shares.round(1).sum(1, keepdims=True)  # with ties
    predicted, binary = shares.argmax(1), n_classes == 2
    counts, values = counts_of(y, predicted, n_classes), shares[:, 1] if binary else shares
    ours = [score(name, counts) for name in ("balanced_accuracy", "f1")]
    average = "binary" if binary else "macro"
    theirs = [
        metrics.balanced_accuracy_score(y, predicted),
        metrics.f1_score(y, predicted, average=average),
    ]
    assert [*ours, score("auc", y, values)] == pytest.approx(
        [*theirs, metrics.roc_auc_score(y, values, multi_class="ovr")]
    )
    assert np.array_equal(counts, metrics.confusion_matrix(y, predicted))


# In runs.


def predictions(trained, n_clients):
    """True labels, predicted ones and probabilities of each client's test samples."""
    for client in range(n_clients):
        test = trained.samples(client).test
        with torch.no_grad():
            outputs = trained.client(client)(test.x)[None]
        values = probabilities(outputs, None).numpy()
        binary = values.ndim == 1
        yield test.y.numpy(), values > 0.5 if binary else likeliest(outputs, None).numpy(), values


@pytest.mark.parametrize("method", ["fedem", "fedavg", "ditto"])
@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_a_run_has_the_scores_of_each_client_and_of_all(method, exchange, tmp_path):
    options = {**DIGITS, **METRICS, "algorithm": method, "exchange": exchange, "dtype": "float64"}
    result = mpifed.run("digits-fedem", output=tmp_path / "run", **options)
    each = list(predictions(mpifed.load(result), 5))
    of_clients = {name: result.clients[f"test_{name}"] for name in NAMES}
    for t, (y, predicted, values) in enumerate(each):
        counts = counts_of(y, predicted, 10)
        assert np.array_equal(of_clients["confusion"][t], counts)
        assert of_clients["f1"][t] == pytest.approx(score("f1", counts))
        assert of_clients["auc"][t] == pytest.approx(score("auc", y, values))
    y, predicted, values = map(np.concatenate, zip(*each, strict=True))
    last = {name: column[-1] for name, column in result.metrics.items()}
    counts = counts_of(y, predicted, 10)
    assert last["test_accuracy"] == pytest.approx(np.trace(counts) / counts.sum())
    for name in ("balanced_accuracy", "f1"):
        assert last[f"test_{name}"] == pytest.approx(score(name, counts))
    areas = [pairs_won(y == label, values[:, label]) for label in range(10)]
    assert last["test_auc"] == pytest.approx(np.mean(areas))
    auc, n_test = of_clients["auc"], result.clients["n_test"]
    assert last["test_auc_mean"] == pytest.approx(np.average(auc, weights=n_test))
    assert last["test_auc_p10"] == last["test_auc_worst10"] == auc.min()
    assert not any("confusion" in name for name in last)


def test_two_labels_have_probabilities_of_the_second(tmp_path):
    options = {"clients": 3, "rounds": 2, "data.n_test": 50, "data.dimension": 9, **METRICS}
    result = mpifed.run("synthetic-fedem", output=tmp_path / "run", dtype="float64", **options)
    each = list(predictions(mpifed.load(result), 3))
    y, predicted, values = map(np.concatenate, zip(*each, strict=True))
    counts = counts_of(y, predicted.astype(int), 2)
    last = {name: column[-1] for name, column in result.metrics.items()}
    assert last["test_auc"] == pytest.approx(pairs_won(y == 1, values))
    assert last["test_f1"] == pytest.approx(
        2 * counts[1, 1] / (counts[1].sum() + counts[:, 1].sum())
    )
    assert np.array_equal(result.clients["test_confusion"].sum(0), counts)


EVALUATIONS = {
    "validation and unseen": {"validation_fraction": 0.3, "unseen_fraction": 0.4},
    "a sample of clients": {"sample": 0.6},
    "averages alike": {"client_weights": "uniform"},
}


@pytest.mark.parametrize("case", EVALUATIONS)
@pytest.mark.parametrize("method", ["fedem", "local"])
def test_any_number_of_ranks_has_the_same_bits(method, case):
    if method == "local" and "unseen_fraction" in EVALUATIONS[case]:
        pytest.skip("it serves no unseen clients")
    own = "test_scores:share_below_a_half"
    options = {"evaluation": {**EVALUATIONS[case], "metrics": [*NAMES, own]}, "dtype": "float32"}
    one, *others = (
        run_rounds(method, rounds=2, clients=7, ranks=ranks, **options).metrics
        for ranks in (1, 2, 3)
    )
    columns = {name for name in one if "auc" in name or "share_below" in name}
    assert {"test_auc", "test_auc_mean", "test_share_below_a_half"} <= columns
    for other in others:
        assert {**other, "seconds": 0} == {**one, "seconds": 0}
    assert all(("unseen_fraction" in EVALUATIONS[case]) == (f"{s}_auc" in columns)
               for s in ("validation", "unseen_test"))  # fmt: skip


def test_a_run_without_scores_has_the_digests_of_one_with_them():
    plain, scored = (
        run_rounds("fedem", rounds=2, evaluation={"metrics": names}) for names in (None, NAMES)
    )
    assert plain.digest == scored.digest
    assert {*scored.metrics} - {*plain.metrics} == {
        f"test_{name}{end}" for name in NAMES[:3] for end in ("", "_mean", "_p10", "_worst10")
    }


# Own functions.


def share_below_a_half(y_true, y_score):
    return float((y_score < 0.5).mean())


def root_mean_squared_error(y_true, y_pred):
    return float(np.sqrt(((y_true - y_pred) ** 2).mean()))


def accuracy(y_true, y_pred):
    return 0.0


def text(y_true, y_pred):
    return "good"


def fails(y_true, y_pred):
    raise OSError("no answer")


def model(model):
    return 0.0


FBETA = """
def fbeta(counts, *, beta: float = 1.0):
    (_, fp), (fn, tp) = counts
    return float((1 + beta**2) * tp / ((1 + beta**2) * tp + beta**2 * fn + fp))
"""


def test_a_function_in_a_package_scores_with_its_options(tmp_path, monkeypatch):
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "scores.py").write_text(FBETA)
    monkeypatch.syspath_prepend(tmp_path)
    found, plain = (
        run_rounds("fedavg", rounds=1, evaluation={"metrics": [name, "f1"]}).metrics
        for name in ("ours.scores:fbeta:beta=2", "ours/scores.py:fbeta")
    )
    assert plain["test_fbeta"] == pytest.approx(found["test_f1"]) != found["test_fbeta"]


def test_a_regression_has_scores_of_ones_own():
    x = np.random.default_rng(0).normal(size=(3, 20, 4))
    data = [(each, each @ [1.0, 2, 3, 4], each, each @ [1.0, 2, 3, 4]) for each in x]
    own = {"metrics": ["test_scores:root_mean_squared_error"]}
    found = run_rounds("fedavg", data, rounds=3, evaluation=own).metrics
    assert found["test_root_mean_squared_error"] == pytest.approx(found["test_loss"] ** 0.5)


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["evaluation.metrics=[acu]"], "auc"),
        (["evaluation.metrics=test_scores:nothing"], "nothing"),
        (["evaluation.metrics=test_scores:model"], "y_true"),
        (["evaluation.metrics=[test_scores:accuracy]"], "test_accuracy"),
        (["evaluation.metrics=[test_scores:text,scores_elsewhere:text]"], "test_text"),
        (["evaluation.metrics=f1", "data=sine", "data.split=2", "model=mlp"], "regression"),
    ],
)
def test_scores_that_do_not_apply_are_refused(words, answer, tmp_path, capfd, monkeypatch):
    monkeypatch.setitem(sys.modules, "scores_elsewhere", sys.modules[__name__])
    done = call([*TINY[:3], *words, "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and answer in done.messages[0]
    assert "evaluation.metrics" in done.messages[0] and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("name", "answer"), [("fails", "client 0,.*OSError: no answer"), ("text", "number")]
)
def test_a_function_that_fails_is_named(name, answer, tmp_path, capfd):
    metrics = f"evaluation.metrics=[test_scores:{name}]"
    done = call([*TINY, metrics, "--output", tmp_path / "run"], capfd)
    assert done.code == 1
    (message,) = done.messages
    assert name in message and re.search(answer, message)


def test_f1_of_a_class_that_is_only_predicted_is_zero():
    assert score("f1", np.array([[3, 1], [0, 0]])) == 0
    assert np.isnan(score("f1", np.array([[4, 0], [0, 0]])))
    three = np.array([[2, 0, 1], [0, 3, 0], [0, 0, 0]])  # as sklearn.metrics.f1_score, macro
    assert score("f1", three) == pytest.approx((4 / 5 + 1 + 0) / 3)
