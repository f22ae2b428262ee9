"""EMNIST as NIST publishes it: upright images, labels from 0, from the zip or from its files."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
import torch
from loading import holds
from published import emnist_files

from mpifed.data.sources.mnist import CHARACTERS, Emnist
from mpifed.mpi.communicator import Alone


def emnist(raw: Path, n_clients: int = 5, **options) -> Emnist:
    return Emnist(n_clients, 0, Alone(), raw=str(raw), **options)


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
    assert dataset.description.class_names == tuple(CHARACTERS["letters"])
    assert holds(dataset, x, y, 255)
