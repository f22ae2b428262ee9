"""How the targets of a user's own samples are read, and what the log says of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loading import all_rows

import mpifed
from mpifed.data.from_python import Arrays
from mpifed.data.sources.csv_file import Csv
from mpifed.data.sources.npz import Npz
from mpifed.errors import InputError
from mpifed.mpi.communicator import Alone

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(60, 4))
Y = np.arange(60) % 3
MARKS = np.arange(60) % 4 == 0


def of_arrays(*samples, n_clients: int = 3, **options) -> Arrays:
    given = {
        key: value for key, value in mpifed.arrays(*samples, **options).items() if key != "name"
    }
    # The arrays live as long as what mpifed.arrays returned.
    of_arrays.held = mpifed.arrays(*samples, **options)
    given = Arrays.complete_options({"partition": None, **given}, n_clients)
    return Arrays(n_clients, 0, Alone(), **given)


def read(y: np.ndarray, **options) -> tuple[str, int, np.ndarray, str]:
    """Task, number of classes, targets in the order of the samples, and remarks."""
    dataset = of_arrays(X[: len(y)], y, **options)
    x, found = all_rows(dataset)
    ordered = found[np.argsort(x[:, 0])][np.argsort(np.argsort(X[: len(y), 0]))]
    about = dataset.description
    return about.task, about.n_classes, ordered, "\n".join(dataset.remarks())


@pytest.mark.parametrize("kind", ["i1", "u2", "i8", "f2", "f4", "f8"])
def test_whole_numbers_are_labels_of_whatever_type(kind: str):
    task, n_classes, found, said = read(Y.astype(kind))
    assert (task, n_classes) == ("classification", 3) and np.array_equal(found, Y)
    assert "data.task=classification, since targets are whole numbers: 3 labels" in said
    assert "data.task=regression" in said
    explicit = read(Y.astype(kind), task="classification")
    assert explicit[:2] == (task, n_classes) and not explicit[3]
    task, _, found, said = read(Y.astype(kind), task="regression")
    assert task == "regression" and np.array_equal(found.reshape(-1), Y) and not said


def test_other_numbers_are_regressed_on():
    task, _, found, said = read(Y + 0.5)
    assert task == "regression" and np.array_equal(found.reshape(-1), Y + 0.5)
    assert "data.task=regression, since targets are not all whole numbers" in said


@given(st.sets(st.integers(0, 40), min_size=1), st.booleans())
def test_labels_stay_and_those_that_never_occur_are_said(labels: set[int], floating: bool):
    y = np.array(sorted(labels))[np.arange(60) % len(labels)]
    _, n_classes, found, said = read(y.astype(float) if floating else y)
    assert n_classes == max(2, max(labels) + 1) and np.array_equal(found, y)
    absent = sorted(set(range(n_classes)) - set(y.tolist()))
    assert ("never occur" in said) == bool(absent)
    if absent:
        assert f"{len(absent)} of the {n_classes} labels never occur" in said
        assert f"({absent[0]}" in said


def test_negative_labels_and_texts_are_counted_in_their_order():
    for values, names in (([-1, 1, 5], "-1, 1, 5"), (["b", "c", "a"], "a, b, c")):
        y = np.array(values)[Y]
        _, n_classes, found, said = read(y)
        assert n_classes == 3
        assert np.array_equal(np.unique(np.array(values))[found], y)
        assert f"in their order ({names})" in said and "never occur" not in said


@pytest.mark.parametrize("kind", [bool, np.int64, np.uint8, np.float32])
def test_one_hot_targets_ask_what_they_are(kind: type):
    one_hot = np.eye(3)[Y].astype(kind)
    with pytest.raises(
        InputError, match=r"one 1 in each row: .*=classification .* labels, .*=multi_label .* tags"
    ):
        of_arrays(X, one_hot)
    task, n_classes, found, _ = read(one_hot, task="classification")
    assert (task, n_classes) == ("classification", 3) and np.array_equal(found, Y)
    task, n_classes, found, _ = read(one_hot, task="multi_label")
    assert (task, n_classes) == ("multi_label", 3) and np.array_equal(found, np.eye(3)[Y])


@pytest.mark.parametrize("kind", [bool, np.int64, np.float64])
def test_columns_of_0_and_1_are_tags(kind: type):
    tags = np.array([[0, 0, 1], [1, 0, 1], [0, 0, 0]])[Y]
    task, _, found, said = read(tags.astype(kind))
    assert task == "multi_label" and np.array_equal(found, tags)
    assert "data.task=multi_label, since targets are 0 or 1 in 3 columns" in said


def test_large_whole_numbers_are_names_of_labels():
    about = of_arrays(X, Y * 1e6).description
    assert about.n_classes == len(about.class_names) == len(np.unique(Y))


def test_marked_samples_test_unless_a_split_is_named(tmp_path: Path):
    n_test = MARKS.reshape(3, -1).sum(axis=1).tolist()
    whose = np.repeat([0, 1, 2], 20)
    dataset = of_arrays(X, Y, clients=whose, is_test=MARKS)
    assert dataset.description.n_test.tolist() == n_test
    assert not dataset.description.n_val.any()
    mixed = of_arrays(X, Y, clients=whose, is_test=MARKS, split="60_20_20")
    assert mixed.description.n_val.tolist() == [4, 4, 4]
    assert "data.split=60_20_20 mixes samples marked for testing" in "\n".join(mixed.remarks())
    np.savez(tmp_path / "own.npz", x=X, y=Y, marks=MARKS)
    options = Npz.complete_options({"partition": None, "test": "marks"}, 3)
    dataset = Npz(3, 0, Alone(), path=str(tmp_path / "own.npz"), **options)
    assert dataset.description.n_test.sum() == MARKS.sum()
    options = Csv.complete_options({"partition": None, "split": None}, 3)
    assert (options["partition"], options["split"]) == ("iid", "60_20_20")
