"""Local steps in which several rows of a client move together, on the same minibatches.

Without a coupling the models of a client are trained apart, each on minibatches of its own. Methods
that keep a global and a personal model side by side need both on one minibatch:

* pFedMe takes K steps of theta on it, and then one of w towards theta;
* APFL steps along a gradient at alpha v + (1 - alpha) w.

A method derives its own ``Coupling``, gives it to the solver, and says in ``move`` what a minibatch
does to a client's rows. It sees all clients that step together as one tensor.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from torch import Tensor

from mpifed.local.optimizers import Rate


@dataclass
class Minibatch(ABC):
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
    """

    rows: Tensor
    clients: Tensor
    number: int
    rate: Rate

    @abstractmethod
    def gradient(self, points: Tensor, model: int) -> Tensor:
        """Return the gradients of the minibatch's mean loss at ``points``.

        Parameters
        ----------
        points : Tensor
            (c, P).
        model : int
            Running statistics are those of ``rows[:, model]``, and change.

        Returns
        -------
        Tensor
            A new tensor, (c, n_trained).
        """

    @abstractmethod
    def step(self, gradient: Tensor, model: int) -> None:
        """Take a step of ``rows[:, model]`` by the update rule.

        Parameters
        ----------
        gradient : Tensor
            (c, n_trained), to which the solver's ``adjustments`` are added; it is overwritten.
        model : int
            Which of a client's models.
        """


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
