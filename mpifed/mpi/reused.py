"""Memory for arrays, used again once nothing refers to what was in it before."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any

import numpy as np

_alone = deque([object()])
# References to an array that is kept and nowhere else, while they are counted.
UNUSED = sys.getrefcount(_alone[0])


class Reused:
    """Up to ``kept`` arrays that are kept: new memory costs more than what is computed into it."""

    def __init__(self, kept: int) -> None:
        self._kept: deque[np.ndarray] = deque(maxlen=kept)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an array that nothing else refers to, with any content."""
        for place in range(len(self._kept)):
            if sys.getrefcount(self._kept[place]) == UNUSED:
                found = self._kept[place]
                if found.shape == shape and found.dtype == dtype:
                    return found
        self._kept.append(np.empty(shape, dtype))
        return self._kept[-1]
