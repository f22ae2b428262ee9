"""What a compressor is, and how a section of a configuration becomes one.

A compressor maps the rows of clients, one by one. A row's result is a function of the row and of
(seed, purpose, round, client), so it does not depend on who else is hosted here. The bits of a
message follow from the draws alone: every rank can book the messages of all clients.

Unbiased compressors (E C(v) = v) have an ``omega`` with E||C(v) - v||^2 <= omega ||v||^2, the class
B(omega) of Horvath et al. (2019) and Gasanov et al. (2022). Every compressor has a ``contraction``:
a delta in (0, 1] with E||C'(v) - v||^2 <= (1 - delta) ||v||^2, where C' = C / (1 + omega) if C is
unbiased and C' = C if not (Koloskova et al. 2019, Assumption 1).

What a biased compressor has kept back, which is sent later (Seide et al. 2014).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from mpifed.components.base import Component
from mpifed.components.registry import complete, find
from mpifed.components.schema import shown
from mpifed.errors import InputError
from mpifed.federation.clients import Draws
from mpifed.random import rows_of_bits
from mpifed.state import client
from topologies.inputs import within

PURPOSE = "compression"
"""The stream that compressors draw from, unless the caller names another."""

NUMBERS = 1 << 15
"""Numbers compressed at a time, so that what is drawn for them stays in a core's cache."""


class Compressor(Component, kind="compressor"):
    """Base class of compressors; its keyword-only parameters are its options.

    A user's class may also have its methods and its attribute without deriving from it.

    Attributes
    ----------
    unbiased : bool
        Whether E C(v) = v.
    """

    unbiased: bool

    @abstractmethod
    def omega(self, size: int) -> float:
        """Return the least known omega for rows of ``size`` numbers; ``ValueError`` if biased."""

    @abstractmethod
    def contraction(self, size: int) -> float:
        """Return the largest known delta for rows of ``size`` numbers."""

    @abstractmethod
    def __call__(
        self, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> Tensor:
        """Return what arrives of ``rows``."""

    @abstractmethod
    def bits(
        self, size: int, itemsize: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        """Return the bits of each client's message, int64 (clients,).

        Parameters
        ----------
        size : int
            Numbers in a row.
        itemsize : int
            Bytes of a number.
        draws, ids, purpose
            As of the call that compresses the message.
        """

    @abstractmethod
    def floats(
        self, size: int, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
    ) -> np.ndarray:
        """Return the numbers in each client's message, in any encoding, int64 (clients,).

        The parameters are as in ``bits``.
        """


class Identity(Compressor):
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
    """Return the compressor that a section of the configuration asks for.

    Parameters
    ----------
    section : str or mapping
        A name, or a mapping with a name and options.
    path : str
        The section's place in the configuration, for messages.

    Raises
    ------
    InputError
        For what is unknown, out of range, a combination that cannot be, or not a compressor.

    Examples
    --------
    >>> build({"name": "rand_k", "k": 2}).omega(size=10)
    4.0
    """
    asked = complete("compression", section, path)
    said = f"{path}.name is '{asked.name}'"
    maker = find("compression", asked.name, f"{path}.name")
    made = Compressor.adopt(maker(**asked.options), said, maker)
    if not isinstance(made.unbiased, bool):
        raise InputError(
            f"{said}, whose unbiased is {shown(made.unbiased)}; allowed: true, false{within(maker)}"
        )
    return made


def random_bits(draws: Draws, purpose: str, ids: np.ndarray, size: int) -> np.ndarray:
    """Return 64 random bits for each coordinate of each client's row, uint64 (clients, size).

    Parameters
    ----------
    draws : Draws
        The random numbers of the round.
    purpose : str
        Name of the random stream.
    ids : ndarray
        Numbers of the clients, int64 (clients,).
    size : int
        Numbers in a row.
    """
    return rows_of_bits(draws.client_keys(purpose, ids), size)


def chunks(clients: int, size: int) -> Iterator[slice]:
    """Return slices of the clients whose rows of ``size`` numbers are compressed together.

    There are about ``NUMBERS`` numbers in a chunk.
    """
    step = max(1, NUMBERS // max(size, 1))
    return (slice(lo, lo + step) for lo in range(0, clients, step))


@dataclass(frozen=True)
class ErrorFeedback:
    """What a biased compressor has kept back of each client's messages.

    Attributes
    ----------
    residual : Tensor
        (clients, numbers), one row per client.
    """

    residual: Tensor = client()
