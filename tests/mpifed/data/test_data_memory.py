"""Files are compared with the memory there is before they are read."""

from __future__ import annotations

import io
import lzma
import resource
import tarfile
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from loading import dataset_of
from published import pickle_3
from test_data_pictures import hub

from mpifed.dataset import archives
from mpifed.errors import InputError


def write_parquet(folder: Path) -> str:
    hub(
        {},
        {"image": np.random.default_rng(0).normal(size=(700, 700)).tolist(), "label": [0] * 700},
        folder / "train.parquet",
    )
    return str(folder)


def write_cifar(folder: Path) -> str:
    values = {"data": np.zeros((400, 3072), np.uint8), "labels": [0] * 400}
    (folder / "data_batch_1").write_bytes(pickle_3(values))
    return str(folder)


def written(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def leave_memory(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    """Let the system say that ``ulimit -v`` leaves this process so many bytes."""
    monkeypatch.setattr(resource, "getrlimit", lambda which: (size, size))


CASES = {
    "cifar10": ("raw", write_cifar),
    "parquet": ("raw", write_parquet),
    "csv": ("path", lambda folder: written(folder, "own.csv", b"a,label\n" + b"1,0\n" * 400_000)),
}


@pytest.mark.parametrize("name", CASES)
def test_files_beyond_memory_are_refused(tmp_path: Path, monkeypatch, name: str):
    option, write = CASES[name]
    options = {option: write(tmp_path)}
    leave_memory(monkeypatch, 1_100_000)
    with pytest.raises(InputError, match=r"memory.*\b1\.1 MB\b"):
        dataset_of(name, 1, **options)


# Archives: names and bytes of their files, and archives that are damaged anywhere.


FILES = {"a/one.txt": b"first " * 50, "b.txt": b"second", "empty": b""}


def zip_of(compression: int) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in FILES.items():
            archive.writestr(name, content)
    return file.getvalue()


def tar_of(mode: str) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        for name, content in FILES.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return file.getvalue()


ARCHIVES = {
    "stored.zip": zip_of(zipfile.ZIP_STORED),
    "deflated.zip": zip_of(zipfile.ZIP_DEFLATED),
    "bzip2.zip": zip_of(zipfile.ZIP_BZIP2),
    "lzma.zip": zip_of(zipfile.ZIP_LZMA),
    "plain.tar": tar_of("w:"),
    "gzip.tar.gz": tar_of("w:gz"),
    "gzip.tgz": tar_of("w:gz"),
    "xz.tar.xz": tar_of("w:xz"),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_files_come_back(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_bytes(ARCHIVES[name])
    assert dict(archives.contents(path, lambda name: True)) == FILES
    assert archives.names(path) == sorted(FILES)
    assert dict(archives.contents(path, "b.txt".__eq__)) == {"b.txt": b"second"}


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:xz"])
def test_a_tar_that_declares_more_than_it_holds_is_refused_at_once(tmp_path: Path, mode: str):
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode=mode) as archive:
        info = tarfile.TarInfo("a/huge.bin")
        info.size = 10**12
        archive.addfile(info)
        archive.fileobj.write(bytes(22_000))
    path = tmp_path / f"huge.tar.{mode[2:]}".rstrip(".")
    path.write_bytes(file.getvalue())
    started = time.process_time()
    with pytest.raises(InputError, match=r"huge\.tar.*declares"):
        archives.names(path)
    assert time.process_time() - started < 5


@pytest.mark.parametrize(("available", "most"), [(100, 30), (600, 120)])
def test_a_bomb_is_refused_before_its_cells_are_held(tmp_path: Path, monkeypatch, available, most):
    path = tmp_path / "bomb.csv.xz"
    path.write_bytes(lzma.compress(b"a,label\n" + b"1,0\n" * 10_000_000, preset=0))
    assert path.stat().st_size < 40_000
    leave_memory(monkeypatch, available * 10**6)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=rf"bomb.*memory.*\b{available} MB\b"):
            dataset_of("csv", 1, path=str(path))
        assert tracemalloc.get_traced_memory()[1] < most * 1e6
    finally:
        tracemalloc.stop()


changes = st.tuples(st.sampled_from(sorted(ARCHIVES)), st.integers(0, 10**6), st.binary(max_size=9))


@given(changes, st.booleans())
def test_damage_anywhere_is_refused_or_does_nothing(tmp_path_factory, change, cut):
    name, at, noise = change
    whole = ARCHIVES[name]
    at %= len(whole)
    path = tmp_path_factory.mktemp("damaged") / name
    path.write_bytes(whole[:at] + noise + (b"" if cut else whole[at + len(noise) :]))
    try:
        found = dict(archives.contents(path, lambda name: True))
    except InputError as refused:
        assert str(path) in str(refused)
    else:
        assert all(isinstance(content, bytes) for content in found.values())
