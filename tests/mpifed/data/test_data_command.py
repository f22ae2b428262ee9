from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from loading import dataset_of

from mpifed.testing import run_command

LAUNCHER_SIZES = (
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "PMIX_SIZE",
    "SLURM_NTASKS",
    "MPI_LOCALNRANKS",
)


def main(words: list[str]) -> int:
    return run_command(["data", *words])


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch):
    for variable in LAUNCHER_SIZES:
        monkeypatch.delenv(variable, raising=False)


def assert_same_data(path: Path, dataset, dtype: torch.dtype) -> None:
    n_clients = dataset.description.n_clients
    from_file = dataset_of("federated", n_clients, path=str(path))
    for name in ("source", "input_shape", "n_classes", "task"):
        assert getattr(from_file.description, name) == getattr(dataset.description, name)
    expected, found = (one.load(np.arange(n_clients), dtype) for one in (dataset, from_file))
    for name in ("train", "val", "test"):
        a, b = getattr(expected, name), getattr(found, name)
        assert torch.equal(a.x, b.x) and a.x.dtype == b.x.dtype
        assert torch.equal(a.y, b.y) and np.array_equal(a.offsets, b.offsets)


@pytest.mark.parametrize("variant", ["paper", "released", "corrected"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_synthetic(tmp_path: Path, variant: str, dtype: str):
    path = tmp_path / "synthetic.h5"
    words = f"synthetic --output {path} --clients 5 --variant {variant} --n-test 20 --dimension 6"
    assert main([*words.split(), "--seed", "4", "--dtype", dtype]) == 0
    dataset = dataset_of("synthetic", 5, 4, variant=variant, n_test=20, dimension=6, seed=4)
    assert_same_data(path, dataset, getattr(torch, dtype))
    with h5py.File(path) as file:
        assert (file.attrs["partition"], file.attrs["seed"]) == (b"natural", 4)


def test_the_published_seed_is_recorded(tmp_path: Path):
    path = tmp_path / "released.h5"
    words = f"synthetic --output {path} --clients 2 --variant released --n-test 2 --dimension 2"
    assert main(words.split()) == 0
    with h5py.File(path) as file:
        assert file.attrs["seed"] == 12345


def test_digits(tmp_path: Path, capsys, monkeypatch):
    path = tmp_path / "digits.h5"
    words = f"digits --output {path} --clients 8 --partition pathological --classes-per-client 4"
    assert main([*words.split(), "--min-samples=9", "--seed", "2"]) == 0
    assert "8 clients of digits" in capsys.readouterr().out
    options = {"partition": "pathological", "classes_per_client": 4, "min_samples": 9}
    for dtype in (torch.float32, torch.float64):
        assert_same_data(path, dataset_of("digits", 8, 2, **options), dtype)
    with h5py.File(path) as file:
        assert file["train/x"].dtype == np.uint8 and file["train/x"].attrs["divisor"] == 16
        assert (file.attrs["source"], file.attrs["partition"]) == (b"digits", b"pathological")
        assert file.attrs["seed"] == 2


@pytest.mark.parametrize(
    ("line", "make"),
    [
        ("sine --split 1 --n-test 7", lambda: dataset_of("sine", 3, 5, split=1, n_test=7)),
        ("tags --vocabulary 20 --tags 6 --intercept false", lambda: tags(intercept=False)),
        ("tags --vocabulary 20 --tags 6", lambda: tags()),
        ("dictionary --samples 50", lambda: dataset_of("dictionary", 3, 5, samples=50)),
        ("poisson --spread 1.5", lambda: dataset_of("poisson", 3, 5, spread=1.5)),
        ("gaussian_mixture", lambda: dataset_of("gaussian_mixture", 3, 5)),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_data_of_any_task(tmp_path: Path, line: str, make, dtype: str):
    path = tmp_path / "file.h5"
    words = f"{line} --clients 3 --seed 5 --dtype {dtype} --output {path}"
    assert main(words.split()) == 0
    assert_same_data(path, make(), getattr(torch, dtype))


def tags(**options) -> Any:
    return dataset_of("tags", 3, 5, vocabulary=20, tags=6, **options)


def test_libsvm_and_ratings_from_a_directory(tmp_path: Path):
    (tmp_path / "raw").mkdir()
    path = tmp_path / "file.h5"
    (tmp_path / "raw" / "mine").write_text("1 2:0.1\n2 1:3\n2 1:4\n1 1:5\n")
    words = f"libsvm --raw {tmp_path / 'raw'} --clients 2 --output {path} --dtype float64"
    assert main(words.split()) == 0
    assert_same_data(path, dataset_of("libsvm", 2, raw=str(tmp_path / "raw")), torch.float64)
    with h5py.File(path) as file:
        assert (file.attrs["source"], file.attrs["task"]) == (b"libsvm-mine", b"classification")
        assert file.attrs["partition"] == b"contiguous" and file["test/x"].shape == (0, 3)
    (tmp_path / "raw" / "ratings.dat").write_text("1::2::3::4\n2::2::5::4\n2::1::1::4\n")
    options = {"users": 2, "movies": 2, "raw": str(tmp_path / "raw")}
    words = f"ratings --raw {tmp_path / 'raw'} --clients 2 --users 2 --movies 2 --output {path}"
    assert main([*words.split(), "--force"]) == 0
    assert_same_data(path, dataset_of("ratings", 2, **options), torch.float32)


def test_idx(tmp_path: Path, small_images: Path):
    path = tmp_path / "images.h5"
    words = f"mnist --raw {small_images} --output {path} --clients 7 --partition dirichlet"
    assert main([*words.split(), "--dirichlet-alpha", "0.4"]) == 0
    dataset = dataset_of("mnist", 7, raw=str(small_images))
    assert_same_data(path, dataset, torch.float32)


@pytest.mark.slow
def test_files_of_more_than_are_held_at_once(tmp_path: Path):
    path = tmp_path / "large.h5"
    words = f"synthetic --output {path} --clients 3 --n-test 12000 --dimension 1000"
    assert main([*words.split(), "--dtype", "float64"]) == 0
    assert path.stat().st_size > 270e6
    made = dataset_of("synthetic", 3, n_test=12000, dimension=1000)
    read = dataset_of("federated", 3, path=str(path))
    for client in range(3):
        a, b = (one.load(np.array([client]), torch.float64) for one in (made, read))
        assert torch.equal(a.train.x, b.train.x) and torch.equal(a.test.x, b.test.x)
        assert torch.equal(a.train.y, b.train.y) and torch.equal(a.test.y, b.test.y)


@pytest.mark.slow
def test_the_real_files(tmp_path: Path, mnist: Path):
    path = tmp_path / "mnist.h5"
    assert main(["mnist", "--raw", str(mnist), "--output", str(path), "--clients", "20"]) == 0
    with h5py.File(path) as file:
        assert sum(len(file[f"{split}/y"]) for split in ("train", "val", "test")) == 70000
        assert file["train/offsets"].shape == (21,)
    assert path.stat().st_size < 60e6


def test_a_file_is_replaced_only_if_told_to(tmp_path: Path, capsys):
    path = tmp_path / "digits.h5"
    words = ["digits", "--output", str(path), "--clients", "4"]
    assert main(words) == 0
    before = path.read_bytes()
    assert main([*words, "--seed", "1"]) == 2
    assert "--force" in capsys.readouterr().err
    assert path.read_bytes() == before
    assert main([*words, "--seed", "1", "--force"]) == 0
    assert path.read_bytes() != before


BAD = {
    "": "name of a data set",
    "digit --output OUT --clients 3": "'digit'.*'digits'",
    "digits --output OUT --clients 0": r"--clients.*\b0\b.*\b1\b",
    "digits --output OUT --clients 5000": "--clients.*5000.*1797 samples",
    "digits --output OUT --clients 3 --dirichlet-alpha nan": "--dirichlet-alpha.*'nan'",
    "digits --output OUT --clients 3 --partition pathological": "--classes-per-client.* 4 ",
    "digits --output OUT --clients 3 --raw here": "--raw.*digits",
    "digits --output OUT/nowhere/a.h5 --clients 3": "directory.*nowhere",
    "mnist --output OUT --clients 3": "--raw.*MPIFED_DATA",
    "libsvm --output OUT --clients 3 --test-fraction 1": r"--test-fraction.*\b1\b",
    "dictionary --output OUT --clients 3 --samples 2": r"--clients.*\b3\b.*\b2 samples",
    "federated --output OUT --clients 3 --path nowhere.h5": "--path.*'nowhere.h5'",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_is_one_sentence_and_writes_nothing(line, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MPIFED_DATA", raising=False)
    assert main([word.replace("OUT", "out.h5") for word in line.split()]) == 2
    captured = capsys.readouterr()
    assert re.search(BAD[line], captured.err)
    assert captured.err.count("\n") == 1 and not captured.out
    assert not [*tmp_path.iterdir()]


def test_damage_found_while_writing_leaves_nothing(tmp_path: Path, small_images: Path, capsys):
    images = small_images / "t10k-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:-100])
    output = tmp_path / "out.h5"
    words = ["mnist", "--raw", str(small_images), "--output", str(output), "--clients", "3"]
    assert main(words) == 2
    assert str(images) in capsys.readouterr().err
    assert not [path for path in tmp_path.iterdir() if "out" in path.name]
