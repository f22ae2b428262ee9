"""What all ranks of a run import, imported once for those of a node before they are forked."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Mapping
from typing import Any

import threadpoolctl

from mpifed.launch import remember_words
from mpifed.mpi.communicator import import_mpi
from mpifed.reporting import bound_threads

LIBRARIES = ("numpy", "torch")

RUN = ("h5py", "mpifed.api", "mpifed.training.train", "mpifed.mpi.node", "mpifed.mpi.star")


def preload(words: list[str]) -> None:
    """Import what ``mpifed run`` needs with these words."""
    bound_threads()
    known = remember_words(words)
    if known.options.list is not None:
        return
    for name in LIBRARIES:
        importlib.import_module(name)
    with contextlib.suppress(ImportError, RuntimeError):  # no MPI: one rank runs without
        import_mpi()
    for name in RUN:
        importlib.import_module(name)
    if known.mapping is not None:
        _import_components(known.mapping)
    threadpoolctl.threadpool_info()  # it remembers where libraries are


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
