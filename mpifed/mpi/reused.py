"""Memory for arrays, used again once nothing refers to what was in it before."""

from __future__ import annotations

import math
import weakref
from collections import deque
from typing import Any

import numpy as np


class Reused:
    """Up to ``most`` free blocks: new memory costs more than what is computed into it."""

    def __init__(self, most: int) -> None:
        self._free: deque[memoryview] = deque(maxlen=most)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an array with any content, whose block is free when it and its views are gone."""
        nbytes = math.prod(shape) * np.dtype(dtype).itemsize
        for _ in range(len(self._free)):
            block = self._free.popleft()
            if block.nbytes == nbytes:
                break
            self._free.append(block)
        else:
            block = np.empty(nbytes, np.uint8).data
        flat = np.frombuffer(block, dtype)
        # Views and tensors refer to this array, since what it refers to itself is none.
        weakref.finalize(flat, self._free.append, block).atexit = False
        return flat.reshape(shape)
