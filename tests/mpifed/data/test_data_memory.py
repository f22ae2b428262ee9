"""Files are compared with the memory there is before they are read."""

from __future__ import annotations

import lzma
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from published import write_cifar_10
from test_data_leaf import femnist_users, leaf_file
from test_data_pictures import hub

from mpifed.components.registry import find
from mpifed.data.sources import csv_file
from mpifed.errors import InputError
from mpifed.mpi.communicator import Alone


def write_femnist(folder: Path) -> str:
    (folder / "all.json").write_text(leaf_file(femnist_users({"a": 9})[0]))
    return str(folder)


def write_parquet(folder: Path) -> str:
    hub({}, {"image": np.zeros(2000).tolist(), "label": [0] * 2000}, folder / "train.parquet")
    return str(folder)


def write_cifar(folder: Path) -> str:
    write_cifar_10(folder)
    return str(folder)


def written(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


def write_npz(folder: Path) -> str:
    np.savez_compressed(folder / "own.npz", x=np.zeros((500, 3)), y=np.zeros(500, int))
    return str(folder / "own.npz")


CASES = {
    "cifar10": ("raw", write_cifar),
    "parquet": ("raw", write_parquet),
    "csv": ("path", lambda folder: written(folder, "own.csv", b"a,label\n" + b"1,0\n" * 900)),
}


@pytest.mark.parametrize("name", CASES)
def test_files_beyond_memory_are_refused(tmp_path: Path, monkeypatch, name: str):
    option, write = CASES[name]
    options = {option: write(tmp_path)}
    monkeypatch.setattr("topologies.inputs.available_memory", lambda: 3000)
    monkeypatch.setattr("topologies.inputs.NEGLIGIBLE", 0)
    with pytest.raises(InputError, match="of memory, and 3 kB is available"):
        find("data", name)(1, 0, Alone(), **options)


@pytest.mark.parametrize("name", ["all.json.xz", "own.csv.xz", "play.txt.xz"])
def test_files_that_grow_without_end_are_refused(tmp_path: Path, name: str):
    path = tmp_path / name
    path.write_bytes(lzma.compress(bytes(70 << 20), preset=0))
    kind = {"all.json.xz": "leaf", "own.csv.xz": "csv", "play.txt.xz": "shakespeare"}[name]
    options = {"raw": str(tmp_path)} if kind == "leaf" else {"path": str(path)}
    with pytest.raises(InputError, match="grows by more than 500 times") as refused:
        find("data", kind)(1, 0, Alone(), **options)
    assert name in str(refused.value)


def test_a_wide_table_takes_no_more_than_is_checked(tmp_path: Path):
    path = tmp_path / "own.csv"
    numbers = np.random.default_rng(0).integers(100, 999, (6000, 100))
    rows = [",".join(map(str, row)) for row in numbers.tolist()]
    path.write_text("\n".join([",".join(f"c{i}" for i in range(100)), *rows]))
    tracemalloc.start()
    columns = csv_file.read(path, {}, None)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert np.array_equal(columns.x, numbers)
    assert peak < csv_file.HELD * path.stat().st_size + 200 * (1 << 16)
