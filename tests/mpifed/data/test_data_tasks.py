"""Federated files of data that have tags, targets or nothing instead of labels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
from edits import attribute, edit, put

from mpifed.data.base import Description, Shards, Split
from mpifed.data.federated_file import SPLITS, Contents, FederatedFile, read_contents, write
from mpifed.errors import InputError
from mpifed.mpi.communicator import Alone

TASKS = {"classification": 3, "sequence": 3, "multi_label": 4, "regression": 2, "unlabelled": 0}


def contents_of(task: str, stored: str = "float32", n_test=(1, 2)) -> Contents:
    counts = (np.array(count, np.int64) for count in ([3, 1], [0, 2], n_test))
    n_train, n_val, n_tested = counts
    about = Description("test", (5,), TASKS[task], n_train, n_val, n_tested, task)
    return Contents(about, "natural", 7, stored)


def shards_of(contents: Contents, dtype: torch.dtype, seed: int = 0) -> Shards:
    random = np.random.default_rng(seed)
    about = contents.description

    def split(name: str) -> Split:
        offsets = contents.offsets(name)
        shape = (int(offsets[-1]), *about.target_shape)
        if about.task == "regression":
            y = random.normal(size=shape)
        else:
            y = random.integers(0, 2 if about.task == "multi_label" else 3, shape)
        x = torch.from_numpy(random.normal(size=(offsets[-1], 5))).to(dtype)
        return Split(x, torch.from_numpy(y).to(about.target_type(dtype)), offsets)

    return Shards(np.arange(2), *map(split, SPLITS))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("stored", ["float32", "float64"])
def test_every_task_is_read_as_it_was_written(tmp_path: Path, task: str, stored: str):
    contents = contents_of(task, stored)
    dtype = getattr(torch, stored)
    shards = shards_of(contents, dtype)
    write(tmp_path / "a.h5", contents, [shards], {})
    found = FederatedFile(2, 0, Alone(), path=str(tmp_path / "a.h5"))
    assert found.contents.same_rows(contents)
    assert found.description.task == task and found.description.n_classes == TASKS[task]
    loaded = found.load(np.arange(2), dtype)
    for name in SPLITS:
        a, b = getattr(shards, name), getattr(loaded, name)
        assert torch.equal(a.x, b.x) and torch.equal(a.y, b.y) and a.y.dtype == b.y.dtype
        assert a.y.shape == b.y.shape and np.array_equal(a.offsets, b.offsets)
    last = found.load(np.array([1]), torch.float64).test
    assert torch.equal(last.y, shards.test.y[1:].to(last.y.dtype))


@pytest.mark.parametrize(
    ("task", "n_classes", "outputs", "shape", "dtype"),
    [
        ("classification", 2, 1, (), torch.int64),
        ("classification", 5, 5, (), torch.int64),
        ("sequence", 2, 2, (4,), torch.int64),
        ("multi_label", 2, 2, (2,), torch.float32),
        ("regression", 1, 1, (1,), torch.float32),
        ("unlabelled", 0, 0, (0,), torch.float32),
    ],
)
def test_what_a_task_asks_of_models_and_targets(task, n_classes, outputs, shape, dtype):
    one = np.ones(3, np.int64)
    about = Description("test", (4,), n_classes, one, one, one, task)
    assert (about.n_outputs, about.target_shape) == (outputs, shape)
    assert about.output_shape == ((4, outputs) if task == "sequence" else (outputs,))
    assert about.target_type(torch.float32) == dtype
    assert about.target_type(torch.uint8).is_floating_point == dtype.is_floating_point


def test_a_file_without_a_task_is_classified_and_one_without_test_samples_is_fine(tmp_path: Path):
    contents = contents_of("classification", n_test=(0, 0))
    path = tmp_path / "a.h5"
    write(path, contents, [shards_of(contents, torch.float32)], {})
    with h5py.File(path, "r+") as file:
        del file.attrs["task"]
    assert read_contents(path).same_rows(contents)
    loaded = FederatedFile(2, 0, Alone(), path=str(path)).load(np.arange(2), torch.float32)
    assert len(loaded.test.y) == 0


def entry(name: str, place, value) -> Callable[[Path], None]:
    return edit(lambda file: file[name].__setitem__(place, value))


def test_counts_of_labels_are_kept_in_the_file(tmp_path: Path):
    contents = contents_of("sequence")
    assert read_again(tmp_path, contents).label_counts is None
    about = replace(contents.description, label_counts=np.array([9, 0, 2**40]))
    found = read_again(tmp_path, replace(contents, description=about)).label_counts
    assert found.dtype == np.int64 and found.tolist() == [9, 0, 2**40]


def read_again(folder: Path, contents: Contents) -> Description:
    path = folder / "again.h5"
    path.unlink(missing_ok=True)
    write(path, contents, [shards_of(contents, torch.float32)], {})
    return read_contents(path).description


TWOS = np.full((4, 4), 2, np.int16)
BAD = {
    "an unknown task": ("multi_label", attribute("task", "multilabel"), "mean 'multi_label'"),
    "other tags": ("multi_label", attribute("n_classes", 3), "(4, 4), .. (samples, 3)"),
    "one label a sequence": ("sequence", put("train/y", np.zeros(4, np.int8)), "(samples, 5)"),
    "a label of 3": ("sequence", entry("train/y", (3, 2), 3), "the label 3, .. 0 .. 2 .. client 1"),
    "a tag of 2": ("multi_label", entry("train/y", (3, 1), 2), "neither 0 nor 1 in row 3 .. 1"),
    "a target missing": ("regression", entry("val/y", (1, 0), np.nan), "target .. client 1"),
    "some tests": ("unlabelled", put("test/offsets", [0, 0, 3]), "client 0 has no test"),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_targets_are_refused_in_a_sentence(tmp_path: Path, case: str):
    task, damage, message = BAD[case]
    path = tmp_path / "a.h5"
    contents = contents_of(task)
    write(path, contents, [shards_of(contents, torch.float32)], {})
    damage(path)
    with pytest.raises(InputError) as refused:
        FederatedFile(2, 0, Alone(), path=str(path)).load(np.arange(2), torch.float32)
    text = str(refused.value)
    assert str(path) in text and "\n" not in text
    assert all(part in text for part in message.split(" .. ")), text
