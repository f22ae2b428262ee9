"""Earlier paths of public modules: importing one warns and gives the module of today."""

from __future__ import annotations

import importlib
import importlib.abc
import sys
import warnings
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

_METHODS = {
    "clusters": ("clustered", "ifca"),
    "fedem": ("fedgmm",),
    "fedmm": ("fedmgs",),
    "global_model": (
        *("agnostic", "d_admm", "fedadam", "fedavg", "fedavg_ft", "fedprox", "kgt", "local"),
        *("maml", "qffl", "scaffnew", "scaffold"),
    ),
    "personal": ("apfl", "ditto", "fedala", "knn_per", "l2gd", "mocha", "pfedme"),
    "shared_body": ("fedbabu", "fedbn", "fedper", "fedrep", "fedrod"),
}

# The module of today by the path of before.
MOVED = {
    **{
        f"mpifed.algorithms.{name}": f"mpifed.algorithms.{family}.{name}"
        for family, names in _METHODS.items()
        for name in names
    },
    "mpifed.algorithms.fedmm.fedmm_theta": "mpifed.algorithms.fedmm.fedmm",
    "mpifed.algorithms.fedmm.sa_ssmm": "mpifed.algorithms.fedmm.fedmm",
    "mpifed.algorithms.flix.dcgd": "mpifed.algorithms.flix.flix",
    "mpifed.algorithms.flix.diana": "mpifed.algorithms.flix.flix",
    "mpifed.data.arrays": "mpifed.data.from_python",
    "mpifed.exchange.aggregation.base": "mpifed.exchange.aggregation",
    "mpifed.exchange.compression.base": "mpifed.exchange.compression",
    "mpifed.reading": "mpifed.io",
    "mpifed.reading.weights": "mpifed.io.weights",
    "mpifed.training.load": "mpifed.training.trained",
    "mpifed.watchdog.stop_requests": "mpifed.watchdog.heartbeat",
}


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds modules by their earlier paths."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return where a module has moved to; None for all others."""
        if fullname not in MOVED:
            return None
        return ModuleSpec(fullname, self, origin=MOVED[fullname])

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        """Return a module that has the names of the one of today."""
        there = importlib.import_module(MOVED[spec.name])
        warnings.warn(f"{spec.name} is {there.__name__} now", DeprecationWarning, stacklevel=2)
        made = ModuleType(spec.name, there.__doc__)
        made.__path__ = []  # mpifed.reading was a package
        vars(made).update({key: value for key, value in vars(there).items() if key[:2] != "__"})
        return made

    def exec_module(self, module: ModuleType) -> None:
        """Do nothing: the names are there."""


def install() -> None:
    """Let imports find modules that have moved."""
    if not any(isinstance(finder, Finder) for finder in sys.meta_path):
        sys.meta_path.append(Finder())
