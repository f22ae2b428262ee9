"""What a correction of gossip is, and how a section of a configuration becomes one.

A method takes a client's shared value from x_i to x_i + u_i in a round, whatever it computes: u_i
is its *update*, -eta times a gradient in the simplest case. Plain gossip mixes the result,
x <- W (x + u). Where clients' data are unlike, its limit depends on W and on the step size: at the
optimum of the mean risk the u_i add up to zero, but none of them is zero. A correction changes what
is mixed by what clients remember of earlier rounds. It sees x, u and the neighbours, not what
was computed, so it goes with any method that averages its shared values.

Equations are in terms of u, hence the step size eta of the papers is the method's own, and may
change from round to round. Rows are clients, as everywhere.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, cast

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from mpifed.components.base import Component, checked_result
from mpifed.components.registry import complete, make
from mpifed.exchange.nearby import Nearby
from mpifed.state import client

Needs = Literal["positive", "doubly_stochastic", "symmetric", "static", "tree"]
"""What a correction asks of the W^k, each including those before it but the first:

* positive: non-negative weights, and positive ones of each client for itself;
* doubly_stochastic: columns sum to one, also among those who take part in a round;
* symmetric: W^k = (W^k)';
* static: the same symmetric W in every round, and all clients in each;
* tree: the same, with the edges of a tree.
"""


@dataclass(frozen=True)
class Kept:
    """What clients remember of earlier rounds where gossip is corrected.

    Attributes
    ----------
    corrections : Tensor
        (clients, numbers), one row per client; for the shared values one after another.
    """

    corrections: Tensor = client()


@dataclass(frozen=True)
class Neighbours:
    """The participants of a round, for those hosted here.

    Attributes
    ----------
    mix : callable
        Maps rows X, (participants, numbers), to the rows of W X, exactly, in memory of their own.
        Collective.
    mix_within : callable
        The same with the matrices of ``Correction.within``, whose messages it books. Collective.
    weights : scipy.sparse.csr_array
        W of the round over all nodes, without explicit zeros.
    mine : ndarray
        The nodes of the participants hosted here, int64 (participants,).
    nearby : callable or None
        Returns who hears whom, with the rows of neighbours one by one, for corrections that are
        not linear in them.
    """

    mix: Callable[[Tensor], Tensor]
    mix_within: Callable[[Tensor], Tensor]
    weights: scipy.sparse.csr_array
    mine: np.ndarray
    nearby: Callable[[], Nearby] | None = None

    @property
    def column_sums(self) -> Tensor:
        """sum_s W[s, t], by which all receivers of t weigh it, float64 (participants, 1)."""
        return self._of_mine(self.weights.sum(axis=0))

    @property
    def degrees(self) -> Tensor:
        """How many others each participant receives from, float64 (participants, 1)."""
        return self._of_mine(np.diff(self.weights.indptr) - (self.weights.diagonal() != 0))

    def _of_mine(self, values: np.ndarray) -> Tensor:
        return torch.from_numpy(np.asarray(values, float)[self.mine, None])


class Correction(Component):
    """Base class of corrections; its keyword-only parameters are its options.

    Attributes
    ----------
    needs : str
        What it asks of the mixing matrices; see ``Needs``.
    least_eigenvalue : float
        All eigenvalues of a symmetric W must be above this one.
    """

    needs: ClassVar[Needs] = "symmetric"
    least_eigenvalue: ClassVar[float] = -1.0

    def width(self, size: int) -> int:
        """Return how many numbers a client remembers for a value of ``size`` numbers."""
        return size

    def numbers(self, size: int) -> int:
        """Return how many numbers a client sends a neighbour for a value of ``size`` numbers."""
        return size

    def mixes(self, schedule: Any) -> Any:
        """Return the schedule that it mixes with, made from the configured one."""
        return schedule

    def within(self, schedule: Any) -> Any:
        """Return a second schedule that it mixes with, made from the configured one, or None."""
        return None

    @abstractmethod
    def step(
        self, x: Tensor, moved: Tensor, kept: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        """Return the new values, and what is remembered. Collective.

        What arguments hold must not be changed. New memory costs more than arithmetic, so that
        the steps here write into what they have made themselves where they can.

        Parameters
        ----------
        x : Tensor
            The participants' values before the round, (participants, size).
        moved : Tensor
            x + u, what the method has made of them, (participants, size).
        kept : Tensor
            What they remember, (participants, ``width(size)``); zeros before the first round.
        neighbours : Neighbours
            Who takes part.
        """


def checked_step(
    correction: Correction, made: Any, x: Tensor, kept: Tensor
) -> tuple[Tensor, Tensor]:
    """Return what ``step`` returned for these values, of their shapes."""
    after, found = (
        checked_result(correction, "step", one, like)
        for one, like in zip(made, (x, kept), strict=True)
    )
    return after, found


class Plain(Correction):
    """No correction: x <- W (x + u) (decentralised SGD, Lian et al. 2017)."""

    needs = "positive"

    def width(self, size: int) -> int:
        return 0

    def step(
        self, x: Tensor, moved: Tensor, kept: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        return neighbours.mix(moved), kept


def build(section: Any, path: str = "exchange.correction") -> Correction | None:
    """Return the correction that a section of the configuration asks for; None for ``none``.

    Parameters
    ----------
    section : str, mapping or Section
        A name, or a mapping with a name and options.
    path : str
        The section's place in the configuration, for messages.

    Raises
    ------
    InputError
        For what is unknown, out of range, or not a correction.

    Examples
    --------
    >>> build("tracking").numbers(10)
    20
    """
    asked = complete("correction", section, path)
    if asked.name == "none":
        return None
    return cast(Correction, make("correction", asked, path))


def halves(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two values that lie one behind the other in each row."""
    first, second = torch.tensor_split(rows, 2, dim=1)
    return first, second
