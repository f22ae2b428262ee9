"""Directories as ``data``: a file for each client, and pictures in a folder for each class."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from loading import all_rows, dataset_of, holds
from PIL import Image

import mpifed
from mpifed.errors import InputError
from mpifed.testing import run_command

RANDOM = np.random.default_rng(0)
TABLE = pd.DataFrame(
    {
        "age": RANDOM.integers(20, 90, 60),
        "sex": np.array(["f", "m"])[np.arange(60) % 2],
        "label": RANDOM.integers(0, 2, 60),
    }
)
CLIENTS = {"oslo": TABLE[:20], "bergen": TABLE[20:45], "ny by": TABLE[45:]}
NAMES = ["bergen", "ny by", "oslo"]


def write(folder: Path, kind: str, clients: dict[str, pd.DataFrame] = CLIENTS) -> Path:
    folder.mkdir(parents=True)
    for name, table in clients.items():
        path = folder / f"{name}.{kind}"
        if kind == "npz":
            np.savez(path, x=table[["age"]].to_numpy(), y=table["label"].to_numpy())
        elif kind == "parquet":
            table.to_parquet(path)
        else:
            table.to_csv(path, index=False)
    (folder / "README.md").write_text("not read")
    return folder


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "npz", "parquet"])
def test_each_file_of_a_directory_is_a_client(kind: str, tmp_path: Path, monkeypatch):
    write(tmp_path / "hospitals", kind)
    monkeypatch.chdir(tmp_path)
    result = mpifed.run(data="hospitals", rounds=2, output="run")
    assert result.clients["client_name"].tolist() == NAMES
    assert result.clients["n_train"].tolist() == [15, 9, 12]
    assert result.summary["experiment"] == "hospitals"


def test_texts_of_all_files_become_the_same_columns(tmp_path: Path):
    clients = {"a": TABLE.assign(sex="f"), "b": TABLE.assign(sex="m")[["label", "sex", "age"]]}
    directory = write(tmp_path / "d", "csv", clients)
    dataset = dataset_of("csv", 2, path=str(directory), partition="natural")
    assert dataset.description.input_shape == (3,)
    train = dataset.load(np.arange(2), torch.float64).train
    assert train.of_client(0).x[:, 1].all() and train.of_client(1).x[:, 2].all()


def test_a_column_may_name_the_clients_instead(tmp_path: Path):
    clients = {name: table.assign(who=["x", "y"] * (len(table) // 2) + ["y"] * (len(table) % 2))
               for name, table in CLIENTS.items()}  # fmt: skip
    directory = write(tmp_path / "d", "csv", clients)
    dataset = dataset_of("csv", 2, path=str(directory), client="who")
    assert dataset.description.client_names == ("x", "y")


@pytest.mark.parametrize("kind", ["csv", "npz"])
def test_files_in_test_are_tested_on(kind: str, tmp_path: Path):
    write(tmp_path / "d" / "train", kind)
    write(tmp_path / "d" / "test", kind, dict.fromkeys(CLIENTS, TABLE[:7]))
    result = mpifed.run(data=tmp_path / "d", rounds=1, output=tmp_path / "run")
    assert result.clients["n_train"].tolist() == [25, 15, 20]
    assert result.clients["n_test"].tolist() == [7, 7, 7]


def test_parts_of_a_data_set_of_the_hub_are_no_clients(tmp_path: Path):
    parts = {"train-00000-of-00002": TABLE[:20], "train-00001-of-00002": TABLE[20:45]}
    directory = write(tmp_path / "hub", "parquet", {**parts, "test-00000-of-00001": TABLE[45:]})
    result = mpifed.run(data=directory, clients=3, rounds=1, output=tmp_path / "run")
    assert result.clients["n_train"].sum() == 45 and "client_name" not in result.clients


WRONG = {
    "none": ({}, "directory without files that end in .*csv.*npz.*png"),
    "two kinds": ({"a.csv": b"", "b.npz": b""}, r"several kinds: \.csv, \.npz"),
    "a single-file format": ({"a.h5": b""}, r"\.h5 files"),
    "other columns": ({"a.csv": b"x,label\n1,0\n", "b.csv": b"z,label\n1,0\n"}, "differ.*'x'"),
    "a bad cell": (
        {"a.csv": b"x,label\n1,0\n", "b.csv": b"x,label\n3,1\nu,0\n"},
        "'x' has numbers, but 'u' on line 3 of 'b.csv'",
    ),
    "a client twice": ({"a.csv": b"x\n1\n", "a.csv.gz": b""}, "several files of the client 'a'"),
}


@pytest.mark.parametrize("case", WRONG)
def test_other_directories_are_refused_in_one_sentence(case: str, tmp_path: Path):
    files, message = WRONG[case]
    (tmp_path / "d").mkdir()
    for name, content in files.items():
        (tmp_path / "d" / name).write_bytes(content)
    with pytest.raises(InputError, match=message) as refused:
        mpifed.run(data=tmp_path / "d", output=tmp_path / "run")
    assert "\n" not in str(refused.value) and not (tmp_path / "run").exists()


def test_a_data_set_is_meant_where_a_directory_has_its_name(tmp_path: Path, monkeypatch, capsys):
    write(tmp_path / "digits", "csv")
    monkeypatch.chdir(tmp_path)
    assert run_command(["run", "digits-fedem", "data=digits", "--dry-run"]) == 0
    assert "csv" not in capsys.readouterr().out


# Pictures in a folder for each class.


GREY = RANDOM.integers(0, 256, (40, 6, 5), np.uint8)
COLOUR = RANDOM.integers(0, 256, (40, 3, 6, 5), np.uint8)


def draw(root: Path, pictures: np.ndarray, folder_of) -> Path:
    for number, picture in enumerate(pictures):
        path = root / folder_of(number) / f"{number:03}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture if picture.ndim == 2 else picture.transpose(1, 2, 0)).save(path)
    return root


@pytest.mark.parametrize("pictures", [GREY, COLOUR])
def test_each_folder_of_pictures_is_a_class(pictures: np.ndarray, tmp_path: Path):
    draw(tmp_path / "pets", pictures, lambda number: ["dog", "cat"][number % 2])
    dataset = dataset_of("image_folder", 3, path=str(tmp_path / "pets"))
    about = dataset.description
    assert about.class_names == ("cat", "dog") and dataset.divisor == 255
    assert holds(dataset, pictures, 1 - np.arange(40) % 2, 255)
    with zipfile.ZipFile(tmp_path / "pets.zip", "w") as archive:
        for path in (tmp_path / "pets").rglob("*.png"):
            archive.write(path, path.relative_to(tmp_path))
    zipped = dataset_of("image_folder", 3, path=str(tmp_path / "pets.zip"))
    assert np.array_equal(all_rows(zipped)[0], all_rows(dataset)[0])


def test_folders_above_classes_are_clients_and_splits(tmp_path: Path):
    def folder(number: int) -> str:
        part = ["train", "val"][number % 5 == 0]
        return f"{part}/{['oslo', 'bergen'][number // 20]}/{number % 4 // 2}"

    draw(tmp_path / "scans", GREY, folder)
    result = mpifed.run(data=tmp_path / "scans", rounds=1, output=tmp_path / "run")
    assert result.clients["client_name"].tolist() == ["bergen", "oslo"]
    assert result.clients["n_test"].tolist() == [4, 4]
    assert result.clients["n_train"].tolist() == [16, 16]


def test_names_of_classes_that_are_numbers_are_the_labels(tmp_path: Path):
    draw(tmp_path / "digits", GREY, lambda number: str(number % 11))
    dataset = dataset_of("image_folder", 1, path=str(tmp_path / "digits"))
    assert holds(dataset, GREY, np.arange(40) % 11, 255)
    draw(tmp_path / "years", GREY, lambda number: str(1998 + number % 2))
    about = dataset_of("image_folder", 1, path=str(tmp_path / "years")).description
    assert (about.class_names, about.n_classes) == (("1998", "1999"), 2)


def test_pictures_of_several_sizes_are_resized(tmp_path: Path):
    draw(tmp_path / "pets", GREY[:20], lambda number: "cat")
    draw(tmp_path / "pets" / "more", RANDOM.integers(0, 9, (9, 4, 4), np.uint8), lambda number: "")
    for path in (tmp_path / "pets" / "more").glob("*.png"):
        path.rename(tmp_path / "pets" / "cat" / f"x{path.name}")
    (tmp_path / "pets" / "more").rmdir()
    draw(tmp_path / "pets", COLOUR[:20], lambda number: "dog")
    path = str(tmp_path / "pets")
    with pytest.raises(InputError, match=r"'.*x000\.png' 4 x 4; data\.size=N"):
        dataset_of("image_folder", 2, path=path)
    assert dataset_of("image_folder", 2, path=path, size=8).description.input_shape == (3, 8, 8)
    grey = dataset_of("image_folder", 2, path=path, size=8, mode="grey")
    assert grey.description.input_shape == (8, 8)


def test_pictures_elsewhere_are_refused(tmp_path: Path):
    draw(tmp_path / "pets", GREY[:9], lambda number: ["cat", "a/b/c"][number % 2])
    with pytest.raises(InputError, match=r"CLASS/1\.png.*CLIENT/CLASS"):
        dataset_of("image_folder", 2, path=str(tmp_path / "pets"))
    with pytest.raises(InputError, match="no such directory"):
        dataset_of("image_folder", 2, path=str(tmp_path / "none"))
    draw(tmp_path / "torn", GREY, lambda number: str(number % 2))
    (tmp_path / "torn" / "0" / "000.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"000\.png' cannot be read"):
        dataset_of("image_folder", 2, path=str(tmp_path / "torn"))
