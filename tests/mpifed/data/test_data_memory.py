"""Files are compared with the memory there is before they are read."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from published import write_cifar_10
from test_data_pictures import hub

from mpifed.components.registry import find
from mpifed.errors import InputError
from mpifed.mpi.communicator import Alone


def write_parquet(folder: Path) -> str:
    hub({}, {"image": np.zeros(2000).tolist(), "label": [0] * 2000}, folder / "train.parquet")
    return str(folder)


def write_cifar(folder: Path) -> str:
    write_cifar_10(folder)
    return str(folder)


def written(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    return str(folder / name)


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
