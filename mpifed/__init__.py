"""mpifed: federated learning simulated over MPI, the same numbers on any number of ranks."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager

TYPE_CHECKING = False
if TYPE_CHECKING:  # ``typing`` would cost every guard 5 ms
    from mpifed.api import load, read, run
    from mpifed.data.frames import frame
    from mpifed.data.from_python import arrays
    from mpifed.errors import InputError
    from mpifed.notebook import plot

# Read by MKL at its first call, so it must be set before torch computes anything. Without it, MKL's
# matrix products depend on where in memory an operand starts, hence on which clients share a rank.
# STRICT also fixes the order for unaligned operands.
os.environ.setdefault("MKL_CBWR", "AUTO,STRICT")

# Read by torch before its first allocation: samples are gathered from all over a shard, and with
# pages of 2 MiB that costs a fifth less of a round (docs/evidence/benchmarks.md).
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

__version__ = "1.0.0rc1"

__all__ = ["InputError", "__version__", "arrays", "frame", "load", "plot", "read", "run"]

# The module of each name, which is imported at its first use: most import torch.
_MODULES = {
    "InputError": "mpifed.errors",
    "arrays": "mpifed.data.from_python",
    "frame": "mpifed.data.frames",
    "load": "mpifed.api",
    "plot": "mpifed.notebook",
    "read": "mpifed.api",
    "run": "mpifed.api",
}


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold SIGINT back until the end of the block: half an import of torch cannot be repeated."""
    import threading  # here, since every guard would import it

    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or handler is None:
        yield  # another thread is not interrupted, and a handler of C cannot be put back
        return
    held: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if held:
            signal.raise_signal(signal.SIGINT)


if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """Return a public name, from the module that defines it."""
        if name not in _MODULES:
            raise AttributeError(f"module 'mpifed' has no attribute {name!r}")
        from importlib import import_module  # here, since every guard would import it

        with _interrupts_held():
            value = getattr(import_module(_MODULES[name]), name)
        return globals().setdefault(name, value)


def __dir__() -> list[str]:
    return [*__all__]
