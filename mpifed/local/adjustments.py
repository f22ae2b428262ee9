"""What methods add to the gradients of local steps.

The local solver steps along g = (1 / |I|) sum_{i in I} q_i grad l(theta; s_i), plus the terms that
a method gives to it, plus weight decay:

* ``Proximal``, mu (theta - anchor): FedProx, Ditto, pFedMe, MOCHA's quadratic coupling;
* ``Shift``, a constant row: the control variates of SCAFFOLD, the linear term of FedDyn;

Further terms derive from ``Adjustment``. Which coordinates are trained at all is the solver's
argument ``mask``, which ``Model.mask`` makes from names: a head alone (FedRep, FedPer, FedBABU),
all but normalisation layers. docs/tutorials has complete methods.

A ``Coupling`` moves several rows of a client together, on the same minibatches.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from mpifed.local.minibatches import Work
from mpifed.local.optimizers import Mask, Moments, Rate, Rule


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
    part = rows if len(rows) == 1 else rows[clients]
    part = part if rows.shape[1] == 1 else part[:, models]
    return part[..., :numbers]


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


@dataclass
class Minibatch:
    """One minibatch of each of some clients, with the rows that move on it.

    Attributes
    ----------
    rows : Tensor
        Models of these clients, (c, models, P); ``Coupling.move`` changes them in place.
    clients : Tensor
        Positions of these clients among the participants hosted here, int64 (c,).
    number : int
        Which minibatch of the round, from 0.
    rate : Tensor or float
        Learning rates, (c, 1), or one for all.
    gradient : callable
        Gives the gradients, (c, n_trained), of the minibatch's mean loss at points (c, P); running
        statistics are those of the model whose number is the second argument, and change.
    rule, moments, block, done, terms, mask
        What ``step`` needs: the update rule and its moments, which clients these are in the order
        of ``terms``, steps before this minibatch, terms of the gradient, and what is trained.
    """

    rows: Tensor
    clients: Tensor
    number: int
    rate: Rate
    gradient: Callable[[Tensor, int], Tensor]
    rule: Rule
    moments: Moments
    block: slice
    done: Rate
    terms: tuple[Adjustment, ...]
    mask: Mask | None
    taken: Counter[int] = field(default_factory=Counter)

    def step(self, gradient: Tensor, model: int) -> None:
        """Take a step of ``rows[:, model]`` by the update rule.

        Parameters
        ----------
        gradient : Tensor
            (c, n_trained), to which the solver's ``adjustments`` are added; it is overwritten.
        model : int
            Which of a client's models.
        """
        self.taken[model] += 1
        w = self.rows[:, model, : gradient.shape[1]]
        for term in self.terms:
            term.add_to(gradient[:, None], w[:, None], self.block, slice(model, model + 1))
        moments = tuple(moment[:, model] for moment in self.moments)
        number = self.done + self.taken[model]
        self.rule.masked_step(w, gradient, moments, self.rate, number, self.mask)


class Coupling(ABC):
    """What a minibatch does to the rows of a client.

    Attributes
    ----------
    steps : int
        Steps of the update rule of each model on a minibatch, at most; Adam counts them.
    """

    steps: int = 1

    @abstractmethod
    def move(self, batch: Minibatch) -> None:
        """Move ``batch.rows`` in place.

        What a client gets must not depend on the other clients of ``batch``: it is computed row by
        row.

        Parameters
        ----------
        batch : Minibatch
            Rows and gradients of the clients that take this step.
        """


def sequences(start: Tensor, coupling: Coupling | None) -> int:
    """Return how many sequences of minibatches a client has: one, or one of each model.

    Parameters
    ----------
    start : Tensor
        First models, (clients, models, P).
    coupling : Coupling or None
        What moves them together; None trains them apart.
    """
    return start.shape[1] if coupling is None else 1


@dataclass(frozen=True)
class Steps:
    """What the local steps of a round are made from.

    Attributes
    ----------
    samples : Tensor
        Rows of the training samples in the order of visits; see ``minibatches.draw_orders``.
    work : Work
        Steps of each client.
    rates : numpy.ndarray
        Learning rates, float64 (clients, epochs), or (clients, 1) for all epochs.
    done : numpy.ndarray
        Steps before this round that count for the optimizer, int64 (clients,).
    weights : Tensor or None
        q, (components, hosted training samples).
    adjustments : tuple of Adjustment
        Terms that are added to the gradients.
    mask : Mask or None
        Which parameters are trained; None for all.
    coupling : Coupling or None
        What moves the models of a client together; None trains them apart.
    """

    samples: Tensor
    work: Work
    rates: np.ndarray
    done: np.ndarray
    weights: Tensor | None
    adjustments: tuple[Adjustment, ...]
    mask: Mask | None
    coupling: Coupling | None = None
