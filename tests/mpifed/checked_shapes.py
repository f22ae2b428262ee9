"""Runs a command with the array shapes of signatures checked: ``checked_shapes.py WORDS...``.

The annotations name types that are imported for type checkers alone, so that a run need not import
jaxtyping. Here they are builtins, which every module finds.
"""

from __future__ import annotations

import builtins
import importlib
import sys
import typing

import jaxtyping

from mpifed.models.base import Model
from mpifed.mpi.communicator import Communicator

MODULES = (
    "mpifed.exchange.reduction",
    "mpifed.models.modules",
    "mpifed.models.linear",
    "mpifed.models.mlp",
    "mpifed.local.solver",
    "mpifed.local.solver",
)


def check_shapes() -> None:
    """Import ``MODULES`` so that every call of theirs is checked from now on."""
    assert not sys.modules.keys() & set(MODULES)
    for contract in (Communicator, Model):
        if getattr(contract, "_is_protocol", False):
            typing.runtime_checkable(contract)
    for name in ("Float", "Float64", "Int64", "Shaped"):
        setattr(builtins, name, getattr(jaxtyping, name))
    with jaxtyping.install_import_hook(list(MODULES), "beartype.beartype"):
        for name in MODULES:
            importlib.import_module(name)


if __name__ == "__main__":
    check_shapes()
    from mpifed.launch import main

    sys.exit(main(sys.argv[1:]))
