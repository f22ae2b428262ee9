"""Memory for what arrives, which is used again once nothing refers to what arrived before.

An array of some megabytes is new memory of the system each time, whose pages are made when they
are first written: that takes as long as a quarter of the message.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from typing import Any

import numpy as np

LEAST, MOST = 1 << 20, 1 << 23
"""Bytes of an array that is kept: smaller ones are not new memory, larger ones would be missed."""

KEPT = 4
"""Arrays that are kept: two pieces under way, and two that are in use."""

_alone = deque([object()])
UNUSED = sys.getrefcount(_alone[0])
"""References to an array that is kept and nowhere else, while they are counted."""


class Arriving:
    """Arrays whose memory is used again.

    Examples
    --------
    >>> arriving = Arriving()
    >>> first = arriving.empty((1 << 18,), np.float32)
    >>> place = first.ctypes.data
    >>> view = first[1:]
    >>> del first
    >>> arriving.empty((1 << 18,), np.float32).ctypes.data == place  # the view is still there
    False
    >>> del view
    >>> arriving.empty((1 << 18,), np.float32).ctypes.data == place
    True
    """

    def __init__(self) -> None:
        self._kept: deque[np.ndarray] = deque(maxlen=KEPT)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Return an array that nothing else refers to, with any content.

        Parameters
        ----------
        shape : tuple of int
            Its shape.
        dtype : dtype
            Its type.
        """
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
