"""Rows that one stream draws one after the other, of which only a block is in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

BLOCK = 4096
"""Rows that are drawn together; the state of the generator is kept for each block."""


class DrawnRows:
    """Rows 0 ... count - 1 of a stream, drawn again from the beginning of their block.

    Parameters
    ----------
    generator : numpy.random.Generator
        The stream.
    draw : callable
        ``draw(generator, n)`` draws the next n rows, (n, ...).
    count : int
        Number of rows.

    Examples
    --------
    >>> drawn = DrawnRows(np.random.default_rng(0), lambda rng, n: rng.random((n, 2)), 3)
    >>> bool((drawn.row(2) == np.random.default_rng(0).random((3, 2))[2]).all())
    True
    """

    def __init__(
        self,
        generator: np.random.Generator,
        draw: Callable[[np.random.Generator, int], np.ndarray],
        count: int,
    ) -> None:
        self._generator, self._draw, self._count = generator, draw, count
        self._states: list[Any] = []
        self._rows = np.empty(0)
        self._drawn = -1
        for number in range(-(-count // BLOCK)):
            self._states.append(generator.bit_generator.state)
            self._rows, self._drawn = self._next(number), number

    def row(self, number: int) -> np.ndarray:
        """Return a row, (...)."""
        block, place = divmod(number, BLOCK)
        if block != self._drawn:
            self._generator.bit_generator.state = self._states[block]
            self._rows, self._drawn = self._next(block), block
        return np.asarray(self._rows[place])

    def _next(self, block: int) -> np.ndarray:
        return self._draw(self._generator, min(BLOCK, self._count - block * BLOCK))
