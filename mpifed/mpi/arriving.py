"""Memory for what arrives, which is used again once nothing refers to what arrived before."""

from __future__ import annotations

import math
import sys
from collections import deque
from typing import Any

import numpy as np

# Bytes of an array that is kept: smaller ones are not new memory, larger ones would be missed.
LEAST, MOST = 1 << 20, 1 << 23

# Arrays that are kept: two pieces under way, and two that are in use.
KEPT = 4

_alone = deque([object()])
# References to an array that is kept and nowhere else, while they are counted.
UNUSED = sys.getrefcount(_alone[0])


class Arriving:
    """Arrays whose memory is used again."""

    def __init__(self) -> None:
        self._kept: deque[np.ndarray] = deque(maxlen=KEPT)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an array that nothing else refers to, with any content."""
        if not LEAST <= math.prod(shape) * np.dtype(dtype).itemsize <= MOST:
            return np.empty(shape, dtype)
        for place in range(len(self._kept)):
            if sys.getrefcount(self._kept[place]) == UNUSED:
                found = self._kept[place]
                if found.shape == shape and found.dtype == dtype:
                    return found
        made = np.empty(shape, dtype)
        self._kept.append(made)
        return made
