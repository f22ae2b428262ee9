"""Federated files of data that have tags, targets or nothing instead of labels."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar

import h5py
import numpy as np
import pytest
import torch
from edits import attribute, edit, put
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from loading import dataset_of
from published import write_cifar_10
from test_data_texts import play_of

from mpifed.dataset import SPLITS, Dataset, Description, Shards, Split
from mpifed.errors import InputError
from mpifed.testing import run_command

TASKS = {"classification": 3, "sequence": 3, "multi_label": 4, "regression": 2, "unlabelled": 0}


@dataclass(frozen=True)
class Contents:
    """What a federated file is to hold, apart from its rows."""

    description: Description
    stored: str = "float32"
    divisor: int = 1

    def offsets(self, split: str) -> np.ndarray:
        counts = getattr(self.description, f"n_{split}")
        return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


class Held(Dataset):
    """The data set of ``contents`` and ``shards``; fails at the client ``failing``."""

    contents: ClassVar[Contents]
    shards: ClassVar[Shards]
    failing: ClassVar[int | None] = None

    def __init__(self, n_clients, run_seed, communicator, *, answer: int = 42):
        self.description, self.divisor = self.contents.description, self.contents.divisor
        self.is_uint8, self.seed = self.contents.stored == "uint8", 7

    def load(self, client_ids, dtype):
        if self.failing in client_ids:
            raise InputError("no more")
        splits = (some(getattr(self.shards, name), client_ids) for name in SPLITS)
        return Shards(client_ids, *splits)


def write(path: Path, contents: Contents, shards: Shards, failing: int | None = None) -> int:
    """Write a file as the command does that makes one of a user's own data set."""
    Held.contents, Held.shards, Held.failing = contents, shards, failing
    clients = contents.description.n_clients
    dtype = contents.stored if contents.stored != "uint8" else "float32"
    words = ["--clients", clients, "--dtype", dtype, "--output", path, "--force"]
    return run_command(["data", f"{__name__}:Held", *words])


def contents_of(task: str, stored: str = "float32", n_test=(1, 2)) -> Contents:
    counts = (np.array(count, np.int64) for count in ([3, 1], [0, 2], n_test))
    return Contents(Description("test", (5,), TASKS[task], *counts, task), stored)


def holds_contents(path: Path, contents: Contents) -> bool:
    """Whether a file is described as its contents are."""
    found, expected = dataset_of("federated", "data", path=str(path)), contents.description
    about = found.description
    return (
        (about.source, about.n_classes, about.task, about.input_shape)
        == (expected.source, expected.n_classes, expected.task, expected.input_shape)
        and (found.is_uint8, found.divisor) == (contents.stored == "uint8", contents.divisor)
        and all(
            np.array_equal(getattr(about, f"n_{name}"), getattr(expected, f"n_{name}"))
            for name in SPLITS
        )
    )


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
    assert write(tmp_path / "a.h5", contents, shards) == 0
    found = dataset_of("federated", 2, path=str(tmp_path / "a.h5"))
    assert holds_contents(tmp_path / "a.h5", contents)
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
    assert write(path, contents, shards_of(contents, torch.float32)) == 0
    with h5py.File(path, "r+") as file:
        del file.attrs["task"]
    assert holds_contents(path, contents)
    loaded = dataset_of("federated", 2, path=str(path)).load(np.arange(2), torch.float32)
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
    assert write(path, contents, shards_of(contents, torch.float32)) == 0
    return dataset_of("federated", "data", path=str(path)).description


TWOS = np.full((4, 4), 2, np.int16)
BAD = {
    "an unknown task": (
        "multi_label",
        attribute("task", "multilabel"),
        "'task'.*'multilabel'.*'multi_label",
    ),
    "other tags": (
        "multi_label",
        attribute("n_classes", 3),
        r"/train/y.*\(4, 4\).*'multi_label'.*\(samples, 3\)",
    ),
    "one label a sequence": (
        "sequence",
        put("train/y", np.zeros(4, np.int8)),
        r"/train/y.*\(4,\).*'sequence'.*\(samples, 5\)",
    ),
    "a label of 3": (
        "sequence",
        entry("train/y", (3, 2), 3),
        r"/train.*label 3\b.*0 \.\. 2\b.*client 1\b",
    ),
    "a tag of 2": ("multi_label", entry("train/y", (3, 1), 2), r"/train.*tag.*client 1\b"),
    "a target missing": ("regression", entry("val/y", (1, 0), np.nan), r"/val.*target.*client 1\b"),
    "some tests": ("unlabelled", put("test/offsets", [0, 0, 3]), r"client 0\b.*test"),
}


@pytest.mark.parametrize("case", BAD)
def test_unusable_targets_are_refused_in_a_sentence(tmp_path: Path, case: str):
    task, damage, message = BAD[case]
    path = tmp_path / "a.h5"
    contents = contents_of(task)
    assert write(path, contents, shards_of(contents, torch.float32)) == 0
    damage(path)
    with pytest.raises(InputError, match=message) as refused:
        dataset_of("federated", 2, path=str(path)).load(np.arange(2), torch.float32)
    text = str(refused.value)
    assert str(path) in text and "\n" not in text


per_example = settings(
    deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40
)


def random_shards(contents: Contents, seed: int) -> Shards:
    """All clients' shards as they would be stored."""
    random = np.random.default_rng(seed)
    about = contents.description

    def split(name: str) -> Split:
        offsets = contents.offsets(name)
        shape = (offsets[-1], *about.input_shape)
        if contents.stored == "uint8":
            x = random.integers(0, 256, shape).astype(np.uint8)
        else:
            x = random.normal(size=shape).astype(contents.stored)
        y = random.integers(0, about.n_classes, offsets[-1])
        return Split(torch.from_numpy(x), torch.from_numpy(y), offsets)

    return Shards(np.arange(about.n_clients), *map(split, SPLITS))


def some(split: Split, clients: np.ndarray) -> Split:
    ranges = [np.arange(*split.offsets[client : client + 2]) for client in clients]
    rows = np.concatenate([np.zeros(0, np.int64), *ranges])
    return Split(split.x[rows], split.y[rows], np.cumsum([0, *map(len, ranges)]))


def same(a: Split, b: Split) -> bool:
    return (
        torch.equal(a.x, b.x)
        and a.x.dtype == b.x.dtype
        and torch.equal(a.y, b.y)
        and np.array_equal(a.offsets, b.offsets)
    )


def described(n_train, n_val, n_test, shape=(3,), n_classes=4, **options) -> Contents:
    counts = (np.array(count, np.int64) for count in (n_train, n_val, n_test))
    return Contents(Description("test", shape, n_classes, *counts), **options)


@pytest.fixture
def usable(tmp_path: Path) -> Path:
    """A file of three clients: float32, 3 features, 4 labels."""
    contents = described([4, 1, 7], [0, 2, 0], [1, 1, 3])
    path = tmp_path / "usable.h5"
    assert write(path, contents, random_shards(contents, 0)) == 0
    return path


@st.composite
def layouts(draw) -> Contents:
    n_clients = draw(st.integers(1, 6))
    counts = [
        draw(st.lists(st.integers(least, 9), min_size=n_clients, max_size=n_clients))
        for least in (1, 0, 1)
    ]
    shape = draw(st.sampled_from([(), (1,), (3,), (2, 5), (2, 1, 3)]))
    stored = draw(st.sampled_from(["uint8", "float32", "float64"]))
    divisor = draw(st.sampled_from([1, 16, 255])) if stored == "uint8" else 1
    return described(*counts, shape, draw(st.integers(1, 5)), stored=stored, divisor=divisor)


@given(layouts(), st.data())
@per_example
def test_what_was_written_is_read_by_any_owner(tmp_path, contents, data):
    path = tmp_path / "round.h5"
    shards = random_shards(contents, 1)
    assert write(path, contents, shards) == 0
    n_clients = contents.description.n_clients
    clients = np.array(data.draw(st.sets(st.integers(0, n_clients - 1)).map(sorted)), np.int64)
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    dataset = dataset_of("federated", n_clients, path=str(path))
    loaded = dataset.load(clients, dtype)
    assert holds_contents(path, contents)
    for name in SPLITS:
        expected = some(getattr(shards, name), clients)
        x = expected.x.to(dtype)
        if contents.divisor > 1:
            x /= contents.divisor
        assert same(getattr(loaded, name), Split(x, expected.y, expected.offsets))


def test_a_file_says_where_it_comes_from(usable: Path):
    with h5py.File(usable) as file:
        assert (file.attrs["source"], file.attrs["partition"]) == (b"test", b"natural")
        assert (file.attrs["seed"], file.attrs["n_classes"], file.attrs["version"]) == (7, 4, 1)
        assert json.loads(file.attrs["options"])["answer"] == 42
        assert file["train/offsets"][()].tolist() == [0, 4, 5, 12]
        assert file["train/x"].shape == (12, 3) and file["test/y"].shape == (5,)


def test_the_same_data_are_the_same_bytes(tmp_path: Path):
    contents = described([4, 1, 7], [0, 2, 0], [1, 1, 3])
    for name in ("a", "b"):
        assert write(tmp_path / name, contents, random_shards(contents, 0)) == 0
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_a_file_by_the_users_own_hand_is_read(tmp_path: Path):
    path = tmp_path / "own.h5"
    with h5py.File(path, "w") as file:
        file.attrs.update(source="mine", partition="by hand", seed=0, n_classes=2)
        for split in SPLITS:
            file[f"{split}/x"] = np.arange(8, dtype=">f4").reshape(4, 2)
            file[f"{split}/y"] = np.array([0, 1, 1, 0], np.int8)
            file[f"{split}/offsets"] = np.array([0, 1, 4], np.int32)
    loaded = dataset_of("federated", 2, path=str(path)).load(np.array([1]), torch.float32)
    assert loaded.train.x.tolist() == [[2, 3], [4, 5], [6, 7]]
    assert loaded.test.y.tolist() == [1, 1, 0]


def no_hdf5(path: Path) -> None:
    path.write_text("x,y\n1,2\n")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-200])


BAD_FEDERATED = {
    "no file": (lambda path: path.unlink(), "data.path.*file"),
    "another format": (no_hdf5, "signature"),
    "truncated": (cut, "truncated"),
    "a version to come": (attribute("version", 2), r"version.*\b2\b.*\b1\b"),
    "no labels": (attribute("n_classes", 0), r"'n_classes'.*\b0\b.*'classification'"),
    "falling offsets": (put("train/offsets", [0, 5, 4, 12]), "/train/offsets.*fall"),
    "offsets in fractions": (
        put("train/offsets", [0.0, 4.0, 5.0, 12.0]),
        "/train/offsets.*whole numbers",
    ),
    "x in texts": (put("val/x", np.array([b"ab", b"c"])), r"/val/x.*'uint8', 'uint16'"),
    "clients differ": (put("val/offsets", [0, 2]), "train, val.*test.*number of clients"),
    "a client without training": (put("train/offsets", [0, 4, 4, 12]), r"client 1\b.*training"),
    "too high a label": (
        edit(lambda f: f["train/y"].__setitem__(4, 4)),
        r"/train.*label 4\b.*0 \.\. 3\b.*client 1\b",
    ),
    "nan": (
        edit(lambda f: f["train/x"].__setitem__((5, 1), np.nan)),
        r"/train.*finite.*client 2\b",
    ),
}


@pytest.mark.parametrize("case", BAD_FEDERATED)
def test_an_unusable_file_is_refused_in_a_sentence_that_names_it(usable: Path, case: str):
    damage, message = BAD_FEDERATED[case]
    damage(usable)
    with pytest.raises(InputError, match=message) as refused:
        dataset_of("federated", 3, path=str(usable)).load(np.arange(3), torch.float32)
    text = str(refused.value)
    assert str(usable) in text and "\n" not in text


def test_a_value_that_the_runs_type_cannot_hold_is_refused(tmp_path: Path):
    contents = described([1], [0], [1], stored="float64")
    shards = random_shards(contents, 0)
    shards.train.x[0, 0] = 1e300
    assert write(tmp_path / "big.h5", contents, shards) == 0
    dataset = dataset_of("federated", 1, path=str(tmp_path / "big.h5"))
    assert dataset.load(np.arange(1), torch.float64).train.x[0, 0] == 1e300
    with pytest.raises(InputError, match=r"/train.*finite.*client 0\b"):
        dataset.load(np.arange(1), torch.float32)


@given(st.data())
@per_example
def test_truncation_is_recognised_anywhere(usable: Path, tmp_path: Path, data):
    whole = usable.read_bytes()
    path = tmp_path / "cut.h5"
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(InputError):
        dataset_of("federated", "data", path=str(path))


@given(st.data())
@settings(per_example, max_examples=200)
def test_damage_is_a_sentence_or_other_numbers_but_nothing_else(usable, tmp_path, data):
    damaged = bytearray(usable.read_bytes())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    path = tmp_path / "flipped.h5"
    path.write_bytes(damaged)
    try:
        dataset_of("federated", 3, path=str(path)).load(np.arange(3), torch.float32)
    except InputError as error:
        assert "flipped.h5" in str(error)


def test_a_source_that_fails_leaves_nothing(tmp_path: Path, capsys):
    contents = described([4, 1, 7], [0, 2, 0], [1, 1, 3])
    path = tmp_path / "failed.h5"
    path.write_text("what stood there before")
    assert write(path, contents, random_shards(contents, 0), failing=2) == 2
    assert "no more" in capsys.readouterr().err
    assert [*tmp_path.glob("**/*.h5*")] == [path]
    assert path.read_text() == "what stood there before"


# Names of labels, and how often each is trained on, pass through a federated file.


@pytest.fixture
def text(tmp_path: Path) -> tuple[Path, Path]:
    """A play, and a federated file of it."""
    (tmp_path / "play.txt").write_text(play_of([300, 200]))
    output = tmp_path / "play.h5"
    words = ["shakespeare", "--path", str(tmp_path / "play.txt"), "--sequence-length", "5"]
    assert run_command(["data", *words, "--output", str(output), "--clients", "2"]) == 0
    return tmp_path / "play.txt", output


def test_characters_and_their_counts_are_in_the_file(text):
    play, output = text
    made = dataset_of("shakespeare", 2, path=str(play), sequence_length=5)
    found = dataset_of("federated", 2, path=str(output))
    assert found.description.class_names == made.description.class_names
    assert np.array_equal(found.description.label_counts, made.description.label_counts)
    assert found.is_uint8
    one, other = (d.load(np.arange(2), torch.float32).train for d in (made, found))
    assert torch.equal(one.x, other.x) and torch.equal(one.y, other.y)


def test_names_of_pictures_are_in_the_file(tmp_path: Path):
    write_cifar_10(tmp_path / "raw")
    output = tmp_path / "cifar.h5"
    words = ["cifar10", "--raw", tmp_path / "raw", "--output", output, "--clients", 3]
    assert run_command(["data", *words]) == 0
    about = dataset_of("federated", "data", path=str(output)).description
    assert about.class_names[9] == "truck" and about.label_counts is None


BAD_NAMES = {
    "few names": (put("class_names", np.frombuffer(b'["a"]', np.uint8)), r"/class_names.*\b100\b"),
    "few counts": (put("label_counts", np.zeros(99, int)), r"/label_counts.*\b100\b"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD_NAMES)
def test_other_names_and_counts_are_refused(text, case: str):
    damage, message = BAD_NAMES[case]
    damage(text[1])
    with pytest.raises(InputError, match=message):
        dataset_of("federated", "data", path=str(text[1]))
