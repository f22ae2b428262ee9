"""What a compressor is, and how a section of a configuration becomes one.

A compressor maps the rows of clients, one by one. A row's result is a function of the row and of
(seed, purpose, round, client), so it does not depend on who else is hosted here, and how many bits
a message takes follows from the draws alone: every rank can book the messages of all clients.

Unbiased compressors (E C(v) = v) have an ``omega`` with E||C(v) - v||^2 <= omega ||v||^2, the class
B(omega) of Horvath et al. (2019) and Gasanov et al. (2022). Every compressor has a ``contraction``:
a delta in (0, 1] with E||C'(v) - v||^2 <= (1 - delta) ||v||^2, where C' = C / (1 + omega) if C is
unbiased and C' = C if not (Koloskova et al. 2019, Assumption 1).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol, cast

import numpy as np
from torch import Tensor

from mpifed.components.registry import complete, find
from mpifed.errors import InputError
from mpifed.federation.clients import Draws
from mpifed.random import rows_of_bits

PURPOSE = "compression"
"""The stream that compressors draw from, unless the caller names another."""

NUMBERS = 1 << 15
"""Numbers compressed at a time, so that what is drawn for them stays in a core's cache."""


class Compressor(Protocol):
    """What a client's message loses; also of a user's own ``package.module:object``."""

    unbiased: bool
    """Whether E C(v) = v."""

    def omega(self, size: int) -> float:
        """The least known omega for rows of ``size`` numbers; ``ValueError`` if biased."""

    def contraction(self, size: int) -> float:
        """The largest known delta for rows of ``size`` numbers."""

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        """What arrives of ``rows``, (clients, size) of float32 or float64.

        ``ids`` are the clients' numbers, int64 (clients,). A row that is not finite arrives as one
        that is not finite.
        """

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        """Bits of each client's message of ``size`` numbers of ``itemsize`` bytes, int64."""

    def floats(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        """Numbers in each client's message, however each is written down, int64 (clients,)."""


VERBS = ("omega", "contraction", "bits", "floats", "__call__")


class Identity:
    """No compression: every number is sent as it is."""

    unbiased = True

    def omega(self, size: int) -> float:
        return 0.0

    def contraction(self, size: int) -> float:
        return 1.0

    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        return rows

    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return np.full(len(ids), 8 * itemsize * size, np.int64)

    def floats(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        return np.full(len(ids), size, np.int64)


def build(section: Any, path: str = "compression") -> Compressor:
    """The compressor that a section (a name, or a mapping with a name) asks for.

    ``path`` is the section's place in the configuration. Raises ``InputError`` for what is unknown,
    out of range, senseless, or no compressor.
    """
    asked = complete("compression", section, path)
    made = find("compression", asked.name)(**asked.options)
    missing = [verb for verb in VERBS if not hasattr(made, verb)]
    if missing or not isinstance(getattr(made, "unbiased", None), bool):
        raise InputError(
            f"{path}.name is '{asked.name}', which cannot be used as a compressor: it lacks "
            f"{', '.join(missing) or 'unbiased, which must be true or false'}"
        )
    return cast(Compressor, made)


def random_bits(draws: Draws, purpose: str, ids: np.ndarray, size: int) -> np.ndarray:
    """64 random bits for each coordinate of each client's row, uint64 (clients, size)."""
    return rows_of_bits(draws.client_keys(purpose, ids), size)


def chunks(clients: int, size: int) -> Iterator[slice]:
    """Slices of the clients whose rows of ``size`` are compressed together."""
    step = max(1, NUMBERS // max(size, 1))
    return (slice(lo, lo + step) for lo in range(0, clients, step))
