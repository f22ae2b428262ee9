"""Reading what components declare without importing torch, which takes seconds."""

from __future__ import annotations

import contextlib
import re
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from typing import Any

# Packages whose modules are dropped.
OURS = ("mpifed", "topologies")

# Libraries that take long to import and that no declaration needs.
LARGE = ("torch", "scipy", "networkx", "h5py", "sklearn")


class _Named:
    """Something of a library, of which only the name is there."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(f"{self._name}.{name}")

    def __call__(self, *words: Any, **options: Any) -> Any:
        _finder.calls += 1
        library = _package(self._name)
        raise RuntimeError(f"{self._name} is called by a command that does not import {library}")

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type, ...]:
        return ()

    def __or__(self, other: Any) -> Any:
        return self

    __ror__ = __or__

    def __getitem__(self, key: Any) -> Any:
        return self


class _Module(types.ModuleType):
    """A module of a library, of which only the name is there."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Named(f"{self.__name__}.{name}")


class _Finder(MetaPathFinder, Loader):
    """Finds the stand-in for every module of ``libraries``; ``calls`` counts what was called."""

    libraries: frozenset[str] = frozenset()
    calls = 0

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> ModuleSpec | None:
        if _package(fullname) not in self.libraries:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: ModuleSpec) -> types.ModuleType:
        made = _Module(spec.name)
        made.__path__ = []
        return made

    def exec_module(self, module: types.ModuleType) -> None:
        pass


_finder = _Finder()


@contextlib.contextmanager
def without_torch() -> Iterator[None]:
    """Give a stand-in to what imports torch in the context, unless it is imported already."""
    with stand_ins("torch"):
        yield


@contextlib.contextmanager
def stand_ins(*libraries: str) -> Iterator[Callable[[], bool]]:
    """Give stand-ins to what imports these libraries in the context."""
    absent = frozenset(libraries) - set(sys.modules)
    if not absent or _finder in sys.meta_path:
        earlier = _finder.calls
        yield lambda: _finder.calls > earlier
        return
    before = set(sys.modules)
    contents = {name: set(vars(sys.modules[name])) for name in before if _package(name) in OURS}
    _finder.libraries, earlier = absent, _finder.calls
    sys.meta_path.insert(0, _finder)
    try:
        yield lambda: _finder.calls > earlier
    finally:
        with_torch()
        for name in set(sys.modules) - before:
            if _package(name) in OURS:
                del sys.modules[name]
        # A package that stays has its dropped modules, and what it took from them, as attributes.
        for name, had in contents.items():
            kept = vars(sys.modules[name])
            for added in set(kept) - had if hasattr(sys.modules[name], "__path__") else ():
                del kept[added]


def with_torch() -> None:
    """Let what is imported from here on have torch itself, as a user's own component needs."""
    if _finder in sys.meta_path:
        sys.meta_path.remove(_finder)
        for name in [name for name in sys.modules if _package(name) in _finder.libraries]:
            del sys.modules[name]


def names_own_module(word: str) -> bool:
    """Return whether a word, or the file that it names, may name a user's ``module:object``."""
    texts = [word]
    with contextlib.suppress(OSError, ValueError):
        if Path(word).is_file():
            texts.append(Path(word).read_text(encoding="utf-8", errors="replace"))
    return any(re.search(r"[A-Za-z_]\w*:[A-Za-z_]", text) for text in texts)


def _package(name: str) -> str:
    return name.partition(".")[0]
