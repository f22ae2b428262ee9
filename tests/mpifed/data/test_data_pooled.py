"""Data sets of pictures that are pooled and dealt to clients: digits, MNIST, EMNIST, IDX files."""

from __future__ import annotations

import gzip
import lzma
import string
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from loading import dataset_of, holds
from published import emnist_files

from mpifed.dataset import Dataset
from mpifed.errors import InputError


def idx(raw: Path, n_clients: int = 6, **options) -> Dataset:
    return dataset_of("mnist", n_clients, raw=str(raw), **options)


def all_rows(dataset, n_clients: int, dtype=torch.float64) -> tuple[np.ndarray, np.ndarray]:
    shards = dataset.load(np.arange(n_clients), dtype)
    splits = (shards.train, shards.val, shards.test)
    for split, counts in zip(
        splits,
        (dataset.description.n_train, dataset.description.n_val, dataset.description.n_test),
        strict=True,
    ):
        assert np.array_equal(split.counts, counts) and len(split.x) == len(split.y) == counts.sum()
    x = torch.cat([split.x for split in splits]).flatten(1).numpy()
    return x, torch.cat([split.y for split in splits]).numpy()


def sorted_rows(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    rows = np.column_stack([x, y])
    return rows[np.lexsort(rows.T)]


@pytest.mark.parametrize("partition", ["dirichlet", "iid", "pathological"])
def test_the_digits_are_dealt_whole(partition):
    from sklearn.datasets import load_digits

    dataset = dataset_of("digits", 20, partition=partition)
    assert dataset.description.input_shape == (8, 8)
    assert dataset.description.n_classes == 10
    x, y = all_rows(dataset, 20)
    bundle = load_digits()
    assert x.min() == 0 and x.max() == 1
    assert np.array_equal(sorted_rows(x * 16, y), sorted_rows(bundle.data, bundle.target))


def check_any_subset_is_the_same(dataset, n_clients: int) -> None:
    whole = dataset.load(np.arange(n_clients), torch.float32)
    clients = np.array([1, 2, n_clients - 1])
    part = dataset.load(clients, torch.float32)
    for a, b in ((whole.train, part.train), (whole.val, part.val), (whole.test, part.test)):
        rows = np.concatenate([np.arange(*a.offsets[c : c + 2]) for c in clients])
        assert torch.equal(a.x[rows], b.x) and torch.equal(a.y[rows], b.y)
        assert np.array_equal(b.counts, a.counts[clients])
    assert len(dataset.load(np.arange(0), torch.float32).test.y) == 0


def test_any_clients_get_the_same_samples(small_images):
    check_any_subset_is_the_same(dataset_of("digits", 9, 3), 9)
    check_any_subset_is_the_same(idx(small_images), 6)


def test_many_pictures_are_read_as_they_stand(tmp_path: Path, write_idx):
    images = np.random.default_rng(0).integers(0, 256, (5000, 60, 60), np.uint8)
    for part, rows in (("train", slice(0, 4950)), ("test", slice(4950, 5000))):
        # More bytes and samples than are read, or sent, at once.
        write_idx(tmp_path, part, images[rows], np.arange(len(images[rows])) % 7)
    options = {"partition": "contiguous", "split": "published"}
    shards = idx(tmp_path, 1, **options).load(np.arange(1), torch.uint8)
    assert np.array_equal(shards.train.x.numpy(), images[:4950])
    assert np.array_equal(shards.test.x.numpy(), images[4950:])


def test_seeds_order_and_deal_anew():
    def train(run_seed: int, **options) -> torch.Tensor:
        dataset = dataset_of("digits", 5, run_seed, partition="iid", **options)
        return dataset.load(np.arange(5), torch.float32).train.x

    assert torch.equal(train(3), train(0, seed=3))
    assert not torch.equal(train(3), train(4))


def test_idx_files_are_read_in_any_compression(tmp_path: Path, write_idx):
    random = np.random.default_rng(0)
    images, labels = random.integers(0, 256, (140, 6, 3)), random.integers(0, 5, 140)
    for directory, name, compressions in (
        ("plain", "t10k", ("", "")),
        ("gz", "t10k", (".gz", ".gz")),
        ("xz", "test", (".xz", "")),
    ):
        (tmp_path / directory).mkdir()
        write_idx(tmp_path / directory, "train", images[:100], labels[:100], compressions)
        write_idx(tmp_path / directory, name, images[100:], labels[100:], compressions)
    for directory in ("plain", "gz", "xz"):
        dataset = idx(tmp_path / directory)
        assert dataset.description.input_shape == (6, 3)
        x, y = all_rows(dataset, 6)
        assert np.array_equal(
            sorted_rows(np.round(x * 255), y), sorted_rows(images.reshape(140, -1), labels)
        )
        stored = dataset.load(np.arange(6), torch.uint8).train.x
        divided = dataset.load(np.arange(6), torch.float32).train.x
        assert stored.dtype == torch.uint8 and torch.equal(divided, stored.float() / 255)


@pytest.mark.slow
def test_the_real_files(mnist: Path):
    dataset = idx(mnist, 1, partition="contiguous", split="published")
    x, y = all_rows(dataset, 1, torch.float32)
    assert x.shape == (70000, 784)
    assert np.bincount(y).tolist() == [
        6903, 7877, 6990, 7141, 6824, 6313, 6876, 7293, 6825, 6958,
    ]  # fmt: skip
    assert x.mean() == pytest.approx(0.1309, abs=1e-4)
    # The test part begins so in the published order.
    test = dataset.load(np.array([0]), torch.uint8).test
    assert test.y[:4].tolist() == [7, 2, 1, 0]


def change(name: str, how: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def apply(directory: Path) -> None:
        (directory / name).write_bytes(how((directory / name).read_bytes()))

    return apply


def swap(directory: Path) -> None:
    other = directory / "train-images-idx3-ubyte.xz"
    other.write_bytes(lzma.compress((directory / "train-labels-idx1-ubyte").read_bytes()))


TRAIN, LABELS = "train-images-idx3-ubyte.xz", "train-labels-idx1-ubyte"
TEST = "t10k-images-idx3-ubyte.gz"
BAD = {
    "images missing": (
        lambda d: (d / TRAIN).unlink(),
        "data.raw.*'train-images-idx3-ubyte'",
    ),
    "labels for images": (swap, "train-images-idx3-ubyte.xz.*IDX.*3"),
    "labels truncated": (
        change(LABELS, lambda data: data[:-1]),
        "train-labels-idx1.*truncated.*300",
    ),
    "counts differ": (
        change(LABELS, lambda data: data[:4] + b"\0\0\0\x07" + data[8:15]),
        "train-labels-idx1-ubyte.*7 labels.*300 images",
    ),
    "xz truncated": (
        change(TRAIN, lambda data: data[:-200]),
        "train-images-idx3.*Compressed",
    ),
    "sides of 0": (
        change(TEST, lambda d: gzip.compress(gzip.decompress(d)[:8] + bytes(8))),
        "t10k-images-idx3-ubyte.gz.*IDX.*3",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_damaged_idx_files_are_refused(small_images: Path, case: str):
    damage, message = BAD[case]
    damage(small_images)
    with pytest.raises(InputError, match=message) as refused:
        idx(small_images).load(np.arange(6), torch.float32)
    assert str(small_images) in str(refused.value) and "\n" not in str(refused.value)


# EMNIST as NIST publishes it: upright images, labels from 0, from the zip or from its files.


def emnist(raw: Path, n_clients: int = 5, **options) -> Dataset:
    return dataset_of("emnist", n_clients, raw=str(raw), **options)


def zipped(files: dict[str, bytes], path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("gzip/emnist-byclass-mapping.txt", "0 48\n")
        for name, content in files.items():
            archive.writestr(f"gzip/{name}", content)
    return path


def test_byclass_from_the_archive_and_from_its_files(tmp_path: Path):
    files, x, y = emnist_files("byclass", 62)
    others, _, _ = emnist_files("digits", 10)
    path = zipped(files | others, tmp_path / "gzip.zip")
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for raw in (path, tmp_path):
        dataset = emnist(raw)
        about = dataset.description
        assert (about.source, about.input_shape, about.n_classes) == (
            "emnist-byclass",
            (28, 28),
            62,
        )
        assert about.class_names[10] == "A" and about.class_names[61] == "z"
        assert holds(dataset, x, y, 255)
    for name in files:
        (tmp_path / name).unlink()
    assert holds(emnist(tmp_path), x, y, 255)


def test_a_published_test_part_and_a_fraction(tmp_path: Path):
    files, x, _ = emnist_files("byclass", 62)
    path = zipped(files, tmp_path / "gzip.zip")
    shards = emnist(path, split="published", partition="iid").load(np.arange(5), torch.float64)
    assert len(shards.test.y) == 60
    assert any(np.array_equal(np.round(shards.test.x[0].numpy() * 255), each) for each in x[200:])
    assert emnist(path, fraction=0.5).description.n_train.sum() < 0.65 * 130


def test_letters_count_from_0(tmp_path: Path):
    files, x, y = emnist_files("letters", 26, first=1)
    dataset = emnist(zipped(files, tmp_path / "gzip.zip"), variant="letters")
    assert dataset.description.class_names == tuple(string.ascii_uppercase)
    assert holds(dataset, x, y, 255)
