"""Omniglot by drawer, and parquet files of the Hugging Face hub."""

from __future__ import annotations

import io
import json
import string
import zipfile
from pathlib import Path

import numpy as np
import pyarrow
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import all_rows, dataset_of, holds, labels_by_client, sorted_rows
from PIL import Image
from pyarrow import parquet

from mpifed.dataset import Dataset
from mpifed.errors import InputError


def png(values: np.ndarray) -> bytes:
    """A picture as PNG; of one bit a pixel for truth values."""
    file = io.BytesIO()
    Image.fromarray(values).save(file, "PNG")
    return file.getvalue()


def drawings(set_name: str, alphabets: dict[str, int], drawers: int = 6, seed: int = 0):
    """Names and bytes of the files, and pictures, characters and drawers in their order."""
    random = np.random.default_rng(seed)
    files, pictures, characters, whose = {}, [], [], []
    number = 0
    for alphabet, n_characters in sorted(alphabets.items()):
        for character in range(1, n_characters + 1):
            number += 1
            for drawer in range(1, drawers + 1):
                paper = random.random((105, 105)) > 0.1
                name = f"{number:04}_{drawer:02}.png"
                files[f"{set_name}/{alphabet}/character{character:02}/{name}"] = png(paper)
                pictures.append(paper * np.uint8(255))
                characters.append(f"{alphabet}/character{character:02}")
                whose.append(drawer)
    return files, np.array(pictures), np.array(characters), np.array(whose)


def zipped(files: dict[str, bytes], path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images_background/", b"")
        for name, content in files.items():
            archive.writestr(name, content)
    return path


def omniglot(raw: Path, n_clients: int = 6, **options) -> Dataset:
    return dataset_of("omniglot", n_clients, raw=str(raw), **options)


def test_drawings_by_drawer(tmp_path: Path):
    files, pictures, characters, whose = drawings("images_background", {"Greek": 3, "Tagalog": 2})
    path = zipped(files, tmp_path / "images_background.zip")
    dataset = omniglot(path)
    about = dataset.description
    assert (about.input_shape, about.n_classes) == ((105, 105), 5)
    names = np.unique(characters)
    assert about.class_names == tuple(names) and dataset.is_uint8
    labels = np.searchsorted(names, characters)
    assert holds(dataset, pictures, labels, 255)
    first = dataset.load(np.array([0]), torch.uint8)
    own = {picture.tobytes() for picture in pictures[whose == 1]}
    splits = (first.train, first.val, first.test)
    found = [picture.numpy().tobytes() for split in splits for picture in split.x]
    assert len(found) == 5 and set(found) == own
    for name, content in files.items():
        (tmp_path / "unpacked" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "unpacked" / name).write_bytes(content)
    # Beside its archive a picture counts once.
    path.rename(tmp_path / "unpacked" / path.name)
    for raw in (tmp_path / "unpacked", tmp_path / "unpacked" / "images_background"):
        again = omniglot(raw)
        assert torch.equal(again.load(np.array([0]), torch.uint8).train.x, first.train.x)


def test_drawers_of_two_sets_or_of_each_alphabet(tmp_path: Path):
    for number in (1, 2):
        name = f"images_background_small{number}"
        files, *_ = drawings(name, {"Greek": 5, f"Other{number}": 6}, seed=number)
        zipped(files, tmp_path / f"{name}.zip")
    (tmp_path / "LICENSE").write_text("text")
    dataset = omniglot(tmp_path, 12)
    # The alphabet of both sets counts in the first: its drawings are the same ones.
    assert [len(labels) for labels in labels_by_client(dataset)] == [11] * 6 + [6] * 6
    assert dataset.description.n_classes == 5 + 12
    dataset = omniglot(tmp_path, 18, drawer_of="alphabet")
    assert sorted(len(labels) for labels in labels_by_client(dataset)) == [5] * 6 + [6] * 12
    small = omniglot(tmp_path, 12, size=35, partition="iid")
    whole = omniglot(tmp_path, 12, partition="iid").load(np.arange(12), torch.uint8).val.x
    expected = whole.numpy().reshape(-1, 35, 3, 35, 3).mean((2, 4))
    found = small.load(np.arange(12), torch.uint8).val.x
    assert np.array_equal(found, np.floor(expected + 0.5))


@given(st.integers(1, 105))
@settings(max_examples=5)
def test_smaller_pictures_keep_their_mean(tmp_path_factory, side):
    folder = tmp_path_factory.mktemp("omniglot")
    files, pictures, *_ = drawings("images_background", {"Greek": 5})
    path = zipped(files, folder / "images_background.zip")
    options = {"partition": "iid", "min_samples": 5}
    whole, small = (
        all_rows(omniglot(path, 2, size=size, **options), torch.uint8)[0] for size in (105, side)
    )
    assert np.array_equal(sorted_rows(whole, np.zeros(30)), sorted_rows(pictures, np.zeros(30)))
    assert small.shape == (30, side, side)
    assert np.abs(small.mean((1, 2)) - whole.mean((1, 2))).max() <= 0.5 + 1e-9


def hub(features: dict, columns: dict, path: Path) -> None:
    """A parquet file with the metadata that the library `datasets` writes."""
    about = json.dumps({"info": {"features": features}})
    table = pyarrow.table(columns).replace_schema_metadata({"huggingface": about})
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(table, path, row_group_size=7)


def parquets(raw: Path, n_clients: int = 2, **options) -> Dataset:
    return dataset_of("parquet", n_clients, raw=str(raw), **options)


RANDOM = np.random.default_rng(0)


def test_parquet_files_without_rows_are_refused(tmp_path: Path):
    for part in ("train", "test"):
        texts = pyarrow.array([], pyarrow.string())
        hub({}, {"image": texts, "label": texts}, tmp_path / f"{part}-0.parquet")
    with pytest.raises(InputError, match=r"data\.raw.*'.*\.parquet.*\brow"):
        parquets(tmp_path)
    hub({}, {"image": ["ab", "ba"] * 9, "label": ["0", "1"] * 9}, tmp_path / "more.parquet")
    for raw in (tmp_path, tmp_path / "more.parquet"):
        assert parquets(raw, split="60_20_20").description.n_train.sum() == 10


def test_pictures_by_writer(tmp_path: Path):
    grey = RANDOM.integers(0, 256, (30, 28, 28), np.uint8)
    names = [f"class {i}" for i in range(62)]
    features = {"character": {"names": names, "_type": "ClassLabel"}}
    labels, writers = np.arange(30) % 5, np.repeat(["f1", "f0"], [12, 18])
    for part, rows in (("train", slice(0, 25)), ("test", slice(25, 30))):
        pictures = [{"bytes": png(picture), "path": None} for picture in grey[rows]]
        columns = {"image": pictures, "character": labels[rows], "writer_id": writers[rows]}
        hub(features, columns, tmp_path / "data" / f"{part}-00000-of-00001.parquet")
    options = {"label": "character", "client": "writer_id", "divisor": 255}
    dataset = parquets(tmp_path, **options)
    about = dataset.description
    assert (about.input_shape, about.n_classes) == ((28, 28), 62)
    assert about.class_names == tuple(names) and dataset.is_uint8
    assert holds(dataset, grey, labels, 255)
    assert [len(own) for own in labels_by_client(dataset)] == [18, 12]
    published = parquets(tmp_path, **options, partition="iid", split="published", seed=3)
    assert published.description.n_test.sum() == 5


def test_colours_numbers_and_texts(tmp_path: Path):
    colours = RANDOM.integers(0, 256, (8, 4, 5, 3), np.uint8)
    texts = ["".join(row) for row in RANDOM.choice(list("abcd "), (8, 6))]
    numbers = RANDOM.normal(size=(8, 3))
    columns = {
        "img": [{"bytes": png(picture), "path": "a.png"} for picture in colours],
        "text": texts,
        "row": numbers.tolist(),
        "one": numbers[:, 0],
        "y": np.arange(8) % 3,
    }
    hub({}, columns, tmp_path / "train" / "0000.parquet")
    options = {"label": "y", "min_samples": 4}
    dataset = parquets(tmp_path, features="img", **options)
    assert dataset.description.input_shape == (3, 4, 5)
    assert holds(dataset, colours.transpose(0, 3, 1, 2), np.arange(8) % 3, 255)
    dataset = parquets(tmp_path, features="img", divisor=1, **options)
    assert holds(dataset, colours.transpose(0, 3, 1, 2), np.arange(8) % 3)
    dataset = parquets(tmp_path, features="text", **options)
    assert not any("bytes" in line for line in dataset.remarks)
    x, _ = all_rows(dataset, torch.uint8)
    assert sorted("".join(string.printable[c] for c in row) for row in x) == sorted(texts)
    for name, expected in (("row", numbers), ("one", numbers[:, :1])):
        x, _ = all_rows(parquets(tmp_path, features=name, **options))
        assert np.array_equal(np.sort(x, axis=0), np.sort(expected, axis=0))


@pytest.mark.parametrize("kind", ["u1", "i4", "f4", "f8"])
def test_lists_keep_the_type_of_their_numbers(tmp_path: Path, kind: str):
    numbers = RANDOM.integers(0, 100, (9000, 2, 3)).astype(kind)
    column = pyarrow.array(
        numbers.tolist(), pyarrow.list_(pyarrow.list_(pyarrow.from_numpy_dtype(kind)))
    )
    hub({}, {"image": column, "label": np.arange(9000) % 3}, tmp_path / "own.parquet")
    dataset = parquets(tmp_path)
    assert dataset.is_uint8 == (kind == "u1")
    assert holds(dataset, numbers, np.arange(9000) % 3)
    assert ("data.divisor=255" in "".join(dataset.remarks)) == (kind == "u1")


@given(st.binary(max_size=9), st.integers(0, 10**6))
def test_damaged_parquet_files_are_refused_or_read(tmp_path_factory, noise, at):
    path = tmp_path_factory.mktemp("hub") / "train.parquet"
    hub({}, {"image": [[1.0, 2.0]] * 20, "label": [0, 1] * 10}, path)
    whole = path.read_bytes()
    at %= len(whole)
    path.write_bytes(whole[:at] + noise + whole[at + len(noise) :])
    try:
        dataset = parquets(path.parent, 1, split="60_20_20")
    except InputError as refused:
        assert str(path.parent) in str(refused)
    else:
        x, y = all_rows(dataset)
        assert len(x) == len(y)
