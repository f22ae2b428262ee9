"""CIFAR: pictures and labels of the published pickles, and pickles that ask for more."""

from __future__ import annotations

import lzma
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loading import dataset_of, holds, labels_by_client
from published import pickle_2, pickle_3, write_cifar_10, write_cifar_100

from mpifed.dataset import Dataset
from mpifed.errors import InputError


def cifar_10(raw: Path, n_clients: int = 6, **options) -> Dataset:
    return dataset_of("cifar10", n_clients, raw=str(raw), **options)


def cifar_100(raw: Path, n_clients: int = 10, **options) -> Dataset:
    return dataset_of("cifar100", n_clients, raw=str(raw), **options)


@pytest.mark.parametrize("dump", [pickle_2, pickle_3])
def test_batches_of_cifar_10(tmp_path: Path, dump):
    x, y = write_cifar_10(tmp_path / "cifar-10-batches-py", dump=dump)
    dataset = cifar_10(tmp_path)
    assert dataset.description.input_shape == (3, 32, 32)
    assert dataset.description.n_classes == 10
    assert dataset.description.class_names[:2] == ("airplane", "automobile")
    assert holds(dataset, x, y, 255)


def archived(folder: Path, path: Path) -> Path:
    mode = "w:" + {".gz": "gz", ".tar": "", ".xz": "xz"}[path.suffix]
    with tarfile.open(path, mode) as archive:
        archive.add(folder, folder.name)
    return path


@pytest.mark.parametrize("name", ["cifar-10-python.tar.gz", "cifar.tar", "cifar.tar.xz"])
def test_an_archive_is_read_as_its_files_are(tmp_path: Path, name: str):
    x, y = write_cifar_10(tmp_path / "cifar-10-batches-py")
    (tmp_path / "archives").mkdir()
    path = archived(tmp_path / "cifar-10-batches-py", tmp_path / "archives" / name)
    assert holds(cifar_10(path), x, y, 255)
    assert holds(cifar_10(path.parent), x, y, 255)


def test_batches_may_be_compressed_and_few(tmp_path: Path):
    x, y = write_cifar_10(tmp_path, test=False)
    for number in range(2, 6):
        (tmp_path / f"data_batch_{number}").unlink()
    first = tmp_path / "data_batch_1"
    (tmp_path / "data_batch_1.xz").write_bytes(lzma.compress(first.read_bytes()))
    first.unlink()
    assert holds(cifar_10(tmp_path, 3), x[:40], y[:40], 255)
    with pytest.raises(InputError, match=r"data\.split.*'published'.*'cifar10'.*60_20_20"):
        cifar_10(tmp_path, 3, split="published")


def test_the_published_test_part_tests(tmp_path: Path):
    x, y = write_cifar_10(tmp_path)
    shards = cifar_10(tmp_path, 4, split="published", partition="iid").load(
        np.arange(4), torch.float64
    )
    assert len(shards.test.y) == 40 and len(shards.val.y) == 0 and len(shards.train.y) == 200
    assert sorted(shards.test.y.tolist()) == sorted(y[200:].tolist())
    first = np.round(shards.test.x[0].numpy() * 255)
    assert any(np.array_equal(first, picture) for picture in x[200:])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_standardised_pictures_have_the_constants_of_the_published_code(tmp_path: Path, dtype):
    write_cifar_10(tmp_path)
    plain, other = (
        cifar_10(tmp_path, 3, standardise=which).load(np.arange(3), dtype)
        for which in (False, True)
    )
    means = torch.tensor([0.4914, 0.4822, 0.4465], dtype=dtype).view(3, 1, 1)
    deviations = torch.tensor([0.2023, 0.1994, 0.2010], dtype=dtype).view(3, 1, 1)
    for name in ("train", "val", "test"):
        x, y = getattr(plain, name), getattr(other, name)
        assert torch.equal(x.y, y.y) and y.x.dtype == dtype
        torch.testing.assert_close(y.x, (x.x - means) / deviations, rtol=0, atol=1e-6)


def test_cifar_100_has_coarse_labels_to_deal_by(tmp_path: Path):
    x, y, _ = write_cifar_100(tmp_path / "cifar-100-python")
    dataset = cifar_100(tmp_path, pachinko_alpha=1e-6, pachinko_beta=1e6)
    assert dataset.description.class_names[99] == "fine 99"
    assert holds(dataset, x, y, 255)
    # A client has one coarse label (25 samples each) and the next when that is used up.
    coarse = [len(np.unique(labels // 5)) for labels in labels_by_client(dataset)]
    assert coarse[0] == 2
    assert {len(labels) for labels in labels_by_client(dataset)} == {50}


@given(st.integers(5, 9), st.booleans(), st.sampled_from([2, 3, 4]))
def test_plain_pickles_come_back_as_they_were(tmp_path_factory, rows, by_columns, protocol):
    folder = tmp_path_factory.mktemp("pickles")
    array = np.random.default_rng(0).integers(0, 256, (rows, 3072), np.uint8)
    array = np.asfortranarray(array) if by_columns else array
    value = {"data": array, "b": [1, -7, 2.5, None, True, "text"], "c": (b"bytes", [2**40])}
    value["labels"] = list(range(rows))
    (folder / "data_batch_1").write_bytes(pickle.dumps(value, protocol))
    assert holds(cifar_10(folder, 1), array, np.arange(rows), 255)


class Call:
    def __init__(self, function, *arguments):
        self.reduced = (function, arguments)

    def __reduce__(self):
        return self.reduced


HOSTILE = {
    "a command": (pickle.dumps(Call(os.system, "touch pwned")), "posix.system"),
    "builtins": (pickle.dumps(Call(eval, "1+1")), "builtins.eval"),
    "objects in an array": (
        pickle.dumps({"data": np.array([[{}, 1]], object), "labels": [1]}),
        "'data'.*O8.*bytes",
    ),
    "a shape that lies": (
        b"\x80\x02}U\x04datacnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
        b"(K\x01(J\xff\xff\xff\x7fK\x03tcnumpy\ndtype\nU\x02u1K\x00K\x01\x87R\x89U\x02abtbs.",
        "reshape",
    ),
    "cut": (pickle_2({"data": np.zeros((3, 4), np.uint8)})[:-30], "buffer|EOF|truncated|input"),
}  # fmt: skip


@pytest.mark.parametrize("case", HOSTILE)
def test_pickles_that_ask_for_more_are_refused(tmp_path: Path, monkeypatch, case: str):
    monkeypatch.chdir(tmp_path)
    content, message = HOSTILE[case]
    (tmp_path / "data_batch_1").write_bytes(content)
    with pytest.raises(InputError, match=message) as refused:
        cifar_10(tmp_path)
    assert str(tmp_path / "data_batch_1") in str(refused.value)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data_batch_1"]


@given(st.binary(max_size=60), st.integers(0, 400))
def test_damaged_pickles_never_do_more_than_refuse(tmp_path_factory, noise, at):
    path = tmp_path_factory.mktemp("pickles") / "data_batch_1"
    whole = pickle_2({"labels": [1] * 5, "data": np.zeros((5, 3072), np.uint8)})
    at = at if at < 200 else len(whole) - (at - 200)  # what is beside the pixels
    path.write_bytes(whole[:at] + noise + whole[at + len(noise) :])
    try:
        dataset = cifar_10(path.parent, 1)
    except InputError as refused:
        assert str(path) in str(refused)
    else:
        assert dataset.load(np.arange(1), torch.uint8).train.x.shape[1:] == (3, 32, 32)
