"""What users pass to ``mpifed.arrays`` and ``mpifed.run(data=...)``: read, or one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loading import all_rows, dataset_of
from PIL import Image
from scipy import sparse
from torch.utils.data import DataLoader, Dataset, TensorDataset

import mpifed
from mpifed.dataset import Dataset as FederatedDataset
from mpifed.errors import InputError
from mpifed.testing import load_dataset, run_command

RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(30, 4))
Y = np.arange(30) % 3
TENSORS = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


class Samples(Dataset):
    def __init__(self, sample) -> None:
        self.sample = sample

    def __len__(self) -> int:
        return 3

    def __getitem__(self, number: int):
        return self.sample(number)


REFUSED = {
    "a pair of other lengths": (lambda: mpifed.arrays((X, Y[1:])), r"\bx\b.*array"),
    "how many clients": (
        lambda: mpifed.arrays(X, Y, clients=3),
        r"\bx\b.*\b30\b.*clients.*\(\)",
    ),
    "a loader": (lambda: mpifed.arrays(DataLoader(TENSORS)), "DataLoader"),
    "a name": (lambda: mpifed.arrays("digits", Y), r"\bx\b.*<U6.*numbers"),
    "sparse rows": (lambda: mpifed.arrays(sparse.csr_matrix(X), Y), "csr_matrix"),
    "masked values": (
        lambda: mpifed.arrays(np.ma.masked_less(X, 0), Y),
        r"\bx\b.*masked",
    ),
    "mixed": (
        lambda: mpifed.arrays(X, np.array([0, "a", None] * 10, object)),
        r"\by\b.*array",
    ),
    "samples that are mappings": (
        lambda: mpifed.arrays(Samples(lambda i: {"a": X[i], "b": X[i], "y": 0})),
        r"\ba, b, y\b.*features=NAME",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_samples_is_refused_in_one_sentence(case: str):
    make, message = REFUSED[case]
    with pytest.raises(InputError, match=message) as refused:
        load_dataset(make(), 3)
    assert "\n" not in str(refused.value)


WRONG_DATA = {
    "a tensor": torch.from_numpy(X),
    "a loader": DataLoader(TENSORS),
    "a mapping with a name": {"name": "arrays", "x": X, "y": Y},
}


@pytest.mark.parametrize("case", WRONG_DATA)
def test_samples_as_data_name_the_function_that_takes_them(case: str, tmp_path: Path):
    with pytest.raises(InputError, match=r"data=mpifed\.arrays\(x, y\)") as refused:
        mpifed.run("digits-fedem", data=WRONG_DATA[case], output=tmp_path / "run")
    assert len(str(refused.value)) < 200 and not (tmp_path / "run").exists()


def test_arrays_by_name_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert (
        run_command(["run", "digits-fedem", "data=arrays", "--output", str(tmp_path / "run")]) == 2
    )
    assert "data=mpifed.arrays(x, y)" in capsys.readouterr().err


@given(st.lists(st.floats(-49152, 49152, width=16), min_size=5))
def test_half_precision_is_read_without_loss(values: list[float]):
    for kind in (torch.bfloat16, torch.float16, torch.float8_e5m2):
        tensor = torch.tensor(values).to(kind)[:, None]
        data = mpifed.arrays(tensor, partition="contiguous", split="in_order")
        x, _ = all_rows(load_dataset(data, 1))
        assert np.array_equal(x, tensor.to(torch.float64).numpy())


def test_pairs_in_a_list_and_pictures_are_read():
    expected = mpifed.arrays(X, Y)["digest"]
    assert mpifed.arrays(list(TENSORS))["digest"] == expected
    assert mpifed.arrays([(x, y) for x, y in zip(X, Y, strict=True)])["digest"] == expected
    pictures = RANDOM.integers(0, 256, (30, 5, 4), np.uint8)
    pairs = [(Image.fromarray(each), int(y)) for each, y in zip(pictures, Y, strict=True)]
    assert mpifed.arrays(pairs)["digest"] == mpifed.arrays(pictures, Y)["digest"]


def test_objects_of_one_kind_are_read():
    for values, same in (([1, 2, True], [1, 2, 1]), (["a", "bc", "d"], ["a", "bc", "d"])):
        as_objects = mpifed.arrays(X[:3], np.array(values, object))
        assert as_objects["digest"] == mpifed.arrays(X[:3], np.array(same))["digest"]
    as_objects = mpifed.arrays(np.array([[1.5], [2]], object))
    assert as_objects["digest"] == mpifed.arrays(np.array([[1.5], [2.0]]))["digest"]


# How the targets of a user's own samples are read, and what the log says of it.


RANDOM_TARGETS = np.random.default_rng(0)
X_TARGETS = RANDOM_TARGETS.normal(size=(60, 4))
Y_TARGETS = np.arange(60) % 3
MARKS = np.arange(60) % 4 == 0


def of_arrays(*samples, n_clients: int = 3, **options) -> FederatedDataset:
    data = mpifed.arrays(*samples, **options)
    return load_dataset(data, n_clients)


def read(y: np.ndarray, **options) -> tuple[str, int, np.ndarray, str]:
    """Task, number of classes, targets in the order of the samples, and remarks on them."""
    dataset = of_arrays(X_TARGETS[: len(y)], y, **options)
    x, found = all_rows(dataset)
    ordered = found[np.argsort(x[:, 0])][np.argsort(np.argsort(X_TARGETS[: len(y), 0]))]
    about = dataset.description
    of_targets = [remark for remark in dataset.remarks if "data.standardise" not in remark]
    return about.task, about.n_classes, ordered, "\n".join(of_targets)


@pytest.mark.parametrize("kind", ["i1", "u2", "i8", "f2", "f4", "f8"])
def test_whole_numbers_are_labels_of_whatever_type(kind: str):
    task, n_classes, found, said = read(Y_TARGETS.astype(kind))
    assert (task, n_classes) == ("classification", 3) and np.array_equal(found, Y_TARGETS)
    assert "data.task=classification" in said and "3 classes" in said
    explicit = read(Y_TARGETS.astype(kind), task="classification")
    assert explicit[:2] == (task, n_classes) and not explicit[3]
    task, _, found, said = read(Y_TARGETS.astype(kind), task="regression")
    assert task == "regression" and np.array_equal(found.reshape(-1), Y_TARGETS) and not said


def test_other_numbers_are_regressed_on():
    task, _, found, said = read(Y_TARGETS + 0.5)
    assert task == "regression" and np.array_equal(found.reshape(-1), Y_TARGETS + 0.5)
    assert "data.task=regression" in said


@given(st.sets(st.integers(0, 40), min_size=1), st.booleans())
def test_labels_stay_what_they_are(labels: set[int], floating: bool):
    y = np.array(sorted(labels))[np.arange(60) % len(labels)]
    _, n_classes, found, _ = read(y.astype(float) if floating else y)
    assert n_classes == max(2, max(labels) + 1) and np.array_equal(found, y)


def test_negative_labels_and_texts_are_counted_in_their_order():
    for values in ([-1, 1, 5], ["b", "c", "a"]):
        y = np.array(values)[Y_TARGETS]
        _, n_classes, found, _ = read(y)
        assert n_classes == 3
        assert np.array_equal(np.unique(np.array(values))[found], y)


@pytest.mark.parametrize("kind", [bool, np.int64, np.uint8, np.float32])
def test_one_hot_targets_ask_what_they_are(kind: type):
    one_hot = np.eye(3)[Y_TARGETS].astype(kind)
    with pytest.raises(InputError, match=r"data\.task=classification.*data\.task=multi_label"):
        of_arrays(X_TARGETS, one_hot)
    task, n_classes, found, _ = read(one_hot, task="classification")
    assert (task, n_classes) == ("classification", 3) and np.array_equal(found, Y_TARGETS)
    task, n_classes, found, _ = read(one_hot, task="multi_label")
    assert (task, n_classes) == ("multi_label", 3) and np.array_equal(found, np.eye(3)[Y_TARGETS])


@pytest.mark.parametrize("kind", [bool, np.int64, np.float64])
def test_columns_of_0_and_1_are_tags(kind: type):
    tags = np.array([[0, 0, 1], [1, 0, 1], [0, 0, 0]])[Y_TARGETS]
    task, _, found, said = read(tags.astype(kind))
    assert task == "multi_label" and np.array_equal(found, tags)
    assert "data.task=multi_label" in said


def test_large_whole_numbers_are_names_of_labels():
    about = of_arrays(X_TARGETS, Y_TARGETS * 1e6).description
    assert about.n_classes == len(about.class_names) == len(np.unique(Y_TARGETS))


def test_marked_samples_test_unless_a_split_is_named(tmp_path: Path):
    n_test = MARKS.reshape(3, -1).sum(axis=1).tolist()
    whose = np.repeat([0, 1, 2], 20)
    dataset = of_arrays(X_TARGETS, Y_TARGETS, clients=whose, is_test=MARKS)
    assert dataset.description.n_test.tolist() == n_test
    assert not dataset.description.n_val.any()
    mixed = of_arrays(X_TARGETS, Y_TARGETS, clients=whose, is_test=MARKS, split="60_20_20")
    assert mixed.description.n_val.tolist() == [4, 4, 4]
    np.savez(tmp_path / "own.npz", x=X_TARGETS, y=Y_TARGETS, marks=MARKS)
    dataset = dataset_of("npz", 3, path=str(tmp_path / "own.npz"), test="marks")
    assert dataset.description.n_test.sum() == MARKS.sum()
