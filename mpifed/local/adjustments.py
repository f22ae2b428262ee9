"""What methods add to the gradients of local steps.

The local solver steps along g = (1 / |I|) sum_{i in I} q_i grad l(theta; s_i), plus the terms that
a method gives to it, plus weight decay:

* ``Proximal``, mu (theta - anchor): FedProx, Ditto, pFedMe, MOCHA's quadratic coupling;
* ``Shift``, a constant row: the control variates of SCAFFOLD, the linear term of FedDyn;
* ``Within``, what keeps the first numbers of a row between bounds: the weights of FedALA.

Further terms derive from ``Adjustment``. Which coordinates are trained at all is the solver's
argument ``mask``, which ``Model.mask`` makes from names: a head alone (FedRep, FedPer, FedBABU),
all but normalisation layers. docs/local_steps.md has a complete method of each kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor


class Adjustment(ABC):
    """A term of the gradients of some clients' models.

    Tensors have the axes (clients, components, numbers), in the order of the participants hosted
    here. The first two may be 1, for what clients or components share. Only the first
    ``n_parameters - n_buffers`` numbers are read.
    """

    @abstractmethod
    def reordered(self, order: Tensor) -> Adjustment:
        """Return the same term for the clients in another order, int64 (clients,)."""

    @abstractmethod
    def add_to(self, gradient: Tensor, parameters: Tensor, clients: slice, models: slice) -> None:
        """Add the term to ``gradient`` in place.

        Parameters
        ----------
        gradient : Tensor
            (c, m, P) of the clients and components below.
        parameters : Tensor
            Where the gradient was taken, (c, m, P).
        clients, models : slice
            Which of the clients, in the present order, and which of their components.
        """


def rows_of(rows: Tensor, clients: slice, models: slice, numbers: int) -> Tensor:
    """Return a part of ``rows``, whose axes of length 1 are shared.

    Parameters
    ----------
    rows : Tensor
        (clients or 1, components or 1, numbers or more).
    clients, models : slice
        Which clients and components.
    numbers : int
        How many of the first numbers of a row.

    Returns
    -------
    Tensor
        A view.
    """
    own = rows if len(rows) == 1 else rows[clients]
    own = own if rows.shape[1] == 1 else own[:, models]
    return own[..., :numbers]


def reordered(rows: Tensor, order: Tensor) -> Tensor:
    """Return ``rows`` in another order of clients, or as they are where clients share one."""
    return rows if len(rows) == 1 else rows[order]


@dataclass(frozen=True)
class Proximal(Adjustment):
    """mu (theta - anchor), the gradient of (mu / 2) ||theta - anchor||^2.

    Attributes
    ----------
    anchor : Tensor
        (clients or 1, components or 1, P).
    strength : float
        mu.

    Examples
    --------
    >>> import torch
    >>> term = Proximal(torch.ones(1, 1, 2), 0.5)
    >>> gradient = torch.zeros(3, 1, 2)
    >>> term.add_to(gradient, torch.full((3, 1, 2), 5.0), slice(0, 3), slice(0, 1))
    >>> gradient[0]
    tensor([[2., 2.]])
    """

    anchor: Tensor
    strength: float

    def reordered(self, order: Tensor) -> Proximal:
        return Proximal(reordered(self.anchor, order), self.strength)

    def add_to(self, gradient: Tensor, parameters: Tensor, clients: slice, models: slice) -> None:
        if not self.strength:
            return  # adding zeros would turn -0.0 into 0.0
        anchor = rows_of(self.anchor, clients, models, gradient.shape[-1])
        gradient.add_(parameters - anchor, alpha=self.strength)


@dataclass(frozen=True)
class Shift(Adjustment):
    """A constant row, such as c - c_i (SCAFFOLD).

    Attributes
    ----------
    row : Tensor
        (clients or 1, components or 1, P).
    """

    row: Tensor

    def reordered(self, order: Tensor) -> Shift:
        return Shift(reordered(self.row, order))

    def add_to(self, gradient: Tensor, parameters: Tensor, clients: slice, models: slice) -> None:
        gradient += rows_of(self.row, clients, models, gradient.shape[-1])


@dataclass(frozen=True)
class Within(Adjustment):
    """Shortens a step of SGD without momentum, so that the first numbers end between bounds.

    Attributes
    ----------
    low, high : float
        The bounds; after the step, numbers are within them up to rounding.
    count : int
        How many numbers of a row are bounded.
    lr : float
        The learning rate of all steps.

    Examples
    --------
    >>> import torch
    >>> gradient = torch.full((1, 1, 2), 4.0)
    >>> half = torch.full((1, 1, 2), 0.5)
    >>> Within(0, 1, 1, lr=0.5).add_to(gradient, half, slice(0, 1), slice(0, 1))
    >>> half - 0.5 * gradient
    tensor([[[ 0.0000, -1.5000]]])
    """

    low: float
    high: float
    count: int
    lr: float

    def reordered(self, order: Tensor) -> Within:
        return self

    def add_to(self, gradient: Tensor, parameters: Tensor, clients: slice, models: slice) -> None:
        w, slope = parameters[..., : self.count], gradient[..., : self.count]
        slope.copy_((w - (w - self.lr * slope).clamp(self.low, self.high)) / self.lr)
