"""The versions of what determines a run's numbers."""

from __future__ import annotations

import functools


def describe_versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that determine a run's numbers."""
    import platform

    packages = ("mpifed", "torch", "numpy", "scipy", "h5py", "networkx", "mpi4py")
    return {"python": platform.python_version(), **{name: _version(name) for name in packages}}


@functools.cache
def _version(package: str) -> str:
    """The descriptions of packages are long, and a process may run hundreds of short runs."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
