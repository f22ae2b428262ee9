"""LEAF's JSON files: FEMNIST, Shakespeare, and files that are not as they should be."""

from __future__ import annotations

import json
import lzma
import string
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loading import all_rows, dataset_of, holds, labels_by_client

from mpifed.dataset import Dataset
from mpifed.errors import InputError


def leaf_file(users: dict[str, tuple[list, list]], **more) -> str:
    return json.dumps(
        {
            "users": list(users),
            "num_samples": [len(y) for _, y in users.values()],
            "user_data": {user: {"x": x, "y": y} for user, (x, y) in users.items()},
            **more,
        }
    )


def femnist_users(sizes: dict[str, int], seed: int = 0):
    """Writers as LEAF stores them: 784 grey values / 255, and labels."""
    random = np.random.default_rng(seed)
    bytes_of = {u: random.integers(0, 256, (n, 784), np.uint8) for u, n in sizes.items()}
    labels = {user: random.integers(0, 62, n) for user, n in sizes.items()}
    users = {u: ((bytes_of[u] / 255).tolist(), labels[u].tolist()) for u in sizes}
    return users, np.concatenate([*bytes_of.values()]), np.concatenate([*labels.values()])


def femnist(raw: Path, n_clients: int, **options) -> Dataset:
    return dataset_of("femnist", n_clients, raw=str(raw), **options)


def leaf(raw: Path, n_clients: int, **options) -> Dataset:
    return dataset_of("leaf", n_clients, raw=str(raw), **options)


def test_all_data_by_writer(tmp_path: Path):
    folder = tmp_path / "data" / "all_data"
    folder.mkdir(parents=True)
    one, x1, y1 = femnist_users({"f0000_14": 12, "f0001_41": 9})
    two, x2, y2 = femnist_users({"f0002_3": 20}, 1)
    (folder / "all_data_0.json").write_text(leaf_file(one, hierarchies=["a", "b"]))
    (folder / "all_data_1.json.xz").write_bytes(lzma.compress(leaf_file(two).encode()))
    (tmp_path / "data" / "meta.json").write_text("{}")
    dataset = femnist(tmp_path, 3)
    about = dataset.description
    assert (about.input_shape, about.n_classes, dataset.divisor) == ((28, 28), 62, 255)
    assert about.class_names[61] == "z" and dataset.is_uint8
    assert holds(dataset, np.concatenate([x1, x2]), np.concatenate([y1, y2]), 255)
    assert [len(labels) for labels in labels_by_client(dataset)] == [12, 9, 20]
    assert sorted(labels_by_client(dataset)[1]) == sorted(two_of(one, "f0001_41"))
    with zipfile.ZipFile(tmp_path / "femnist.zip", "w") as archive:
        for path in folder.iterdir():
            archive.write(path, f"all_data/{path.name}")
    zipped = femnist(tmp_path / "femnist.zip", 3)
    assert torch.equal(
        zipped.load(np.arange(3), torch.uint8).train.x,
        dataset.load(np.arange(3), torch.uint8).train.x,
    )


def two_of(users, user: str) -> list[int]:
    return users[user][1]


def test_writers_are_chosen_and_dealt(tmp_path: Path):
    users, x, y = femnist_users({f"w{i}": 4 + 3 * i for i in range(6)})
    (tmp_path / "all.json").write_text(leaf_file(users))
    sizes = [len(labels) for labels in labels_by_client(femnist(tmp_path, 2, choose="largest"))]
    assert sizes == [16, 19]
    assert holds(femnist(tmp_path, 4, partition="iid"), x, y, 255)
    with pytest.raises(InputError, match=r"clients.*\b6\b.*\b5 sources.*data\.min_samples"):
        femnist(tmp_path, 6)


def test_published_parts_by_sample(tmp_path: Path):
    for part in ("train", "test", "sampled_data"):
        (tmp_path / part).mkdir()
    trained, x, y = femnist_users({"a": 8, "b": 9})
    tested, x_test, y_test = femnist_users({"b": 2, "a": 3}, 1)
    (tmp_path / "train" / "t.json").write_text(leaf_file(trained))
    (tmp_path / "test" / "t.json").write_text(leaf_file(tested))
    (tmp_path / "sampled_data" / "t.json").write_text("not read")
    dataset = femnist(tmp_path, 2, split="published")
    assert dataset.description.n_train.tolist() == [8, 9]
    assert dataset.description.n_test.tolist() == [3, 2]
    shards = dataset.load(np.arange(2), torch.uint8)
    assert np.array_equal(shards.train.x.flatten(1).numpy(), x)
    assert np.array_equal(shards.test.y.numpy(), np.concatenate([y_test[2:], y_test[:2]]))
    both = np.concatenate([x, x_test]), np.concatenate([y, y_test])
    assert holds(femnist(tmp_path, 2), *both, 255)


def shakespeare_users(texts: dict[str, str], length: int = 80):
    return {
        user: (
            [text[i : i + length] for i in range(len(text) - length)],
            [text[i + length] for i in range(len(text) - length)],
        )
        for user, text in texts.items()
    }


def test_windows_of_shakespeare(tmp_path: Path):
    texts = {"THE_TRAGEDY_LEAR": "Blow, winds, and crack your cheeks! " * 5}
    texts["HAMLET_OPHELIA"] = "My lord, I have remembrances of yours; " * 4
    users = shakespeare_users(texts)
    more = {"raw": {user: [text] for user, text in texts.items()}}
    (tmp_path / "all_data.json").write_text(leaf_file(users, **more))
    dataset = leaf(tmp_path, 2)
    about = dataset.description
    assert (about.input_shape, about.n_classes, about.n_val.min() > 0) == ((80,), 100, True)
    train = dataset.load(np.arange(2), torch.uint8).train
    # In order: the first 60 % of the windows train.
    assert "".join(string.printable[c] for c in train.x[0]) == texts["THE_TRAGEDY_LEAR"][:80]
    assert train.x[1].tolist()[:-1] == train.x[0].tolist()[1:]
    assert np.array_equal(about.label_counts, np.bincount(train.y.numpy(), minlength=100))
    shuffled = leaf(tmp_path, 2, split="60_20_20").load(np.arange(2), torch.uint8).train
    assert len(shuffled.x) == len(train.x) and not torch.equal(shuffled.x, train.x)
    assert leaf(tmp_path, 2, vocabulary="leaf").description.n_classes == 80


def test_numbers_that_are_no_bytes_stay_as_they_are(tmp_path: Path):
    random = np.random.default_rng(0)
    x = random.normal(size=(20, 6))
    byte = random.integers(0, 256, (10, 6)) / 255
    users = {"a": (x.tolist(), [1.0] * 20), "b": (byte.tolist(), [3] * 10)}
    (tmp_path / "synthetic.json").write_text(leaf_file(users))
    dataset = leaf(tmp_path, 2)
    assert dataset.description.n_classes == 4 and not dataset.is_uint8
    found, y = all_rows(dataset)
    assert np.array_equal(np.sort(found[y == 1], 0), np.sort(x, 0))
    assert np.array_equal(np.sort(found[y == 3], 0), np.sort(byte, 0))


@given(st.lists(st.integers(0, 255), min_size=1, max_size=30))
def test_bytes_over_255_are_recognised_exactly(tmp_path_factory, levels):
    path = tmp_path_factory.mktemp("leaf") / "bytes.json"
    values = [level / 255 for level in levels]
    path.write_text(leaf_file({"a": ([values] * 9, [1] * 9)}))
    dataset = leaf(path.parent, 1)
    assert dataset.is_uint8 and dataset.divisor == 255
    assert dataset.load(np.arange(1), torch.uint8).train.x[0].tolist() == levels
    path.write_text(leaf_file({"a": ([[*values, 0.5]] * 9, [1] * 9)}))
    assert not leaf(path.parent, 1).is_uint8


BAD = {
    "no JSON": ("{", r"file\.json.*line 1\b"),
    "other users": (leaf_file({"a": ([[1.0]], [1])}).replace('["a"]', '["b"]'), "user 'b'"),
    "few labels": (leaf_file({"a": ([[1.0], [2.0]], [1])}), "user 'a'.*2 'x'.*1 'y'"),
    "infinite": (leaf_file({"a": ([[1.0], [float("inf")]], [1, 1])}), "user 'a'.*'x'.*finite"),
    "shapes": (
        leaf_file({"a": ([[1.0]], [1]), "b": ([[1.0, 2.0]], [1])}),
        r"'a'.*'b'.*\(1,\).*\(2,\)",
    ),
    "unknown character": (leaf_file({"a": (["aé"], ["b"])}), "user 'a'.*'é'.*data.vocabulary"),
}


@pytest.mark.parametrize("case", BAD)
def test_other_files_are_refused(tmp_path: Path, case: str):
    text, message = BAD[case]
    (tmp_path / "file.json").write_text(text)
    with pytest.raises(InputError, match=message):
        leaf(tmp_path, 1)
