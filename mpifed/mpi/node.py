"""Sums in two steps: over the ranks of each node in shared memory, then over the nodes'
leaders.
"""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mpifed.mpi.sums import COLUMNS, Sums

# Integers of all ranks of a node that are added at a time, at most.
SCRATCH = 1 << 22

# Bytes of a cache line, to multiples of which the parts of a window are padded.
LINE = 64

# Arrays made since an array's memory was last in use, after which it is given back.
LONG_UNUSED = 64


class NodeSums(Sums):
    """Sums by node; see ``Sums`` for the operations."""

    under_way, shared = 0, True
    wait: Callable[[Any], None]
    sent: Callable[[int], None]

    def __init__(
        self,
        library: Any,
        local: Any,
        leaders: Any,
        several: bool,
    ) -> None:
        self._library, self._local, self._leaders = library, local, leaders
        self._several = several
        self._rank, self._size = local.Get_rank(), local.Get_size()
        self.columns = min(COLUMNS, max(1 << 12, SCRATCH // (self._size + 1)))
        self._scratch: _Window | None = None
        self._arrays: list[_SharedArray] = []
        self._made = 0

    def share(self, size: int) -> slice:
        return slice(size * self._rank // self._size, size * (self._rank + 1) // self._size)

    def begin(self, values: np.ndarray) -> Callable[[], np.ndarray]:
        total = self._added(values)
        return lambda: total

    def _added(self, values: np.ndarray) -> np.ndarray:
        limbs, columns = values.shape
        every, total = self._places(limbs, columns)
        every[self._rank] = values
        self.filled()
        part = self.share(columns)
        every[:, :, part].sum(0, out=total[:, part])
        self.filled()
        if self._several:
            if self._leaders is not None:
                whole = np.ascontiguousarray(total)
                request = self._leaders.Iallreduce(self._library.IN_PLACE, whole, self._library.SUM)
                self.wait(request)
                self.sent(whole.nbytes)
            self.filled()
        return total[:, part]

    def array(self, shape: Sequence[int], dtype: Any) -> np.ndarray:
        kind = np.dtype(dtype)
        found = self._array_of(max(1, math.prod(shape)) * kind.itemsize)
        return found.entered(self._rank, math.prod(shape), kind).reshape(tuple(shape))

    def filled(self) -> None:
        if self._scratch is not None:
            self._scratch.window.Sync()
        self.wait(self._local.Ibarrier())
        if self._scratch is not None:
            self._scratch.window.Sync()

    def _places(self, limbs: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
        """The integers of all ranks, (ranks, limbs, columns), and their sum, (limbs, columns)."""
        size = limbs * columns
        if self._scratch is None or self._scratch.nbytes < 8 * size * (self._size + 1):
            if self._scratch is not None:
                self._scratch.free()
            self._scratch = _Window(self._library, self._local, 8 * size * (self._size + 1))
        flat = self._scratch.numbers(0, size * (self._size + 1), np.dtype(np.int64))
        blocks = flat.reshape(self._size + 1, limbs, columns)
        return blocks[:-1], blocks[-1]

    def _array_of(self, nbytes: int) -> _SharedArray:
        """Memory that no rank of the node uses; the leader chooses it."""
        self._made += 1
        chosen: tuple[int | None, list[int]] = None, []
        if self._rank == 0:
            free = [k for k, one in enumerate(self._arrays) if not one.in_use()]
            fitting = [k for k in free if self._arrays[k].nbytes == nbytes]
            old = [k for k in free if self._made - self._arrays[k].last > LONG_UNUSED]
            chosen = (fitting[0], []) if fitting else (None, old)
            if fitting:
                self._arrays[fitting[0]].reserve()
        self.wait(self._local.Ibarrier())
        place, old = self._local.bcast(chosen)
        for k in reversed(old):
            self._arrays.pop(k).free()
        if place is None:
            place = len(self._arrays)
            self._arrays.append(_SharedArray(self._library, self._local, nbytes))
        found = self._arrays[place]
        found.last = self._made
        return found


class _Window:
    """Memory that the ranks of a node share."""

    def __init__(self, library: Any, local: Any, nbytes: int) -> None:
        self.nbytes = nbytes
        own = nbytes if local.Get_rank() == 0 else 0
        self.window = library.Win.Allocate_shared(own, 1, comm=local)
        memory, _ = self.window.Shared_query(0)
        self._address = memory.address
        self.window.Lock_all(library.MODE_NOCHECK)

    def numbers(self, offset: int, count: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Return an array on this memory, which does not keep the memory."""
        return np.frombuffer(memoryview(self.memory(offset, count * dtype.itemsize)), dtype)

    def memory(self, offset: int, nbytes: int) -> ctypes.Array[ctypes.c_char]:
        """Return a part of the memory as an object that numpy takes."""
        return (ctypes.c_char * nbytes).from_address(self._address + offset)

    def free(self) -> None:
        """Give the memory back. Collective over the node."""
        self.window.Unlock_all()
        self.window.Free()


class _SharedArray:
    """A window with a flag for each rank that says whether the rank uses it."""

    def __init__(self, library: Any, local: Any, nbytes: int) -> None:
        self._front = -(-8 * local.Get_size() // LINE) * LINE
        self._window = _Window(library, local, self._front + nbytes)
        self._flags = self._window.numbers(0, local.Get_size(), np.dtype(np.int64))
        self.nbytes, self.last = nbytes, 0
        if local.Get_rank() == 0:
            self.reserve()
        local.Barrier()

    def in_use(self) -> bool:
        """Whether any rank may still read it."""
        return bool(self._flags.any())

    def reserve(self) -> None:
        """Mark it as used by all ranks, before any of them knows; of the leader."""
        self._flags[:] = 1

    def entered(self, rank: int, count: int, dtype: np.dtype[Any]) -> np.ndarray:
        """Return it as numbers; the rank's flag falls when nothing refers to them any more."""
        memory = self._window.memory(self._front, count * dtype.itemsize)
        left = weakref.finalize(memory, self._flags.__setitem__, rank, 0)
        left.atexit = False  # MPI has ended by then
        return np.frombuffer(memoryview(memory), dtype)

    def free(self) -> None:
        """Give the memory back. Collective over the node."""
        self._window.free()
