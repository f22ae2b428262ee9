"""What somebody else may have done to an HDF5 file: functions that change the file at a path."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import h5py


def edit(change: Callable[[h5py.File], None]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file)

    return apply


def put(name: str, values) -> Callable[[Path], None]:
    def change(file: h5py.File) -> None:
        file.pop(name, None)
        file[name] = values

    return edit(change)


def attribute(name: str, value) -> Callable[[Path], None]:
    return edit(lambda file: file.attrs.__setitem__(name, value))
