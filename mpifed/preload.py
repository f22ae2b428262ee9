"""What all ranks of a run import, imported once for those of a node before they are forked."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpifed.launch import remember_words
from mpifed.mpi.beginning import import_mpi
from mpifed.reporting import bound_threads

LIBRARIES = ("numpy", "torch")

RUN = ("h5py", "mpifed.api", "mpifed.training.train", "mpifed.mpi.node", "mpifed.mpi.star")


def preload(words: list[str]) -> bool:
    """Import what ``mpifed run`` needs with these words."""
    bound_threads()
    known = remember_words(words)
    if known.options.list is not None:
        return False
    for name in LIBRARIES:
        importlib.import_module(name)
    if not _h5py_needs_mpi():
        _import_all(known.mapping)
    return True


def _import_all(mapping: Mapping[str, Any] | None) -> None:
    """Import the modules of a run, and fail where one of them imports MPI."""
    sys.modules["mpi4py"] = None  # type: ignore[assignment]
    for name in RUN:
        importlib.import_module(name)
    if mapping is not None:
        _import_components(mapping)
    del sys.modules["mpi4py"]
    sys.modules["threadpoolctl"].threadpool_info()  # it remembers where libraries are
    import_mpi()


def _import_components(mapping: Mapping[str, Any]) -> None:
    """Import the shipped components that a configuration names, and read their options."""
    from mpifed.components.registry import find, named
    from mpifed.components.schema import options_of
    from mpifed.components.tables import TABLES
    from mpifed.config.experiments import DEFAULTS

    for section, default in DEFAULTS.items():
        name, _ = named(mapping.get(section, default), section, default)
        if name in TABLES[section]:
            options_of(find(section, name))


def _h5py_needs_mpi() -> bool:
    """Return whether h5py has parallel HDF5, which begins MPI when it is imported."""
    found = importlib.util.find_spec("h5py")
    if found is None or found.origin is None:
        return False
    libraries = Path(found.origin).parent.glob("h5p.*.so")
    return any(b"mpi4py" in library.read_bytes() for library in libraries)
