"""Adam (Kingma and Ba 2015, Algorithm 1) on one flat vector, with a state that can be stored."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mpifed.state import server


@dataclass(frozen=True)
class AdamState:
    """The state of Adam.

    Attributes
    ----------
    step : Tensor
        The number of steps made, int64, no axes.
    first : Tensor
        The first moments, of the parameters' shape.
    second : Tensor
        The second moments, of the parameters' shape.
    """

    step: Tensor = server()
    first: Tensor = server()
    second: Tensor = server()


@dataclass(frozen=True)
class Adam:
    """The step size and the constants of Adam; the defaults are those of the paper and of torch.

    Attributes
    ----------
    lr : float
        The step size.
    beta1 : float
        The decay of the first moments.
    beta2 : float
        The decay of the second moments.
    epsilon : float
        The constant added to the root of the second moments.
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def init(self, parameters: Tensor) -> AdamState:
        """Return the state before the first step."""
        zero = torch.zeros_like(parameters)
        return AdamState(torch.zeros((), dtype=torch.int64), zero, zero)

    def step(
        self, parameters: Tensor, gradient: Tensor, state: AdamState
    ) -> tuple[Tensor, AdamState]:
        """Return the parameters and the state after one step.

        Parameters
        ----------
        parameters : Tensor, shape (n,)
            The parameters.
        gradient : Tensor, shape (n,)
            The gradient to descend.
        state : AdamState
            The state before the step.

        Returns
        -------
        tuple of Tensor and AdamState
            The new parameters and the new state.
        """
        count = int(state.step) + 1
        first = torch.lerp(state.first, gradient, 1 - self.beta1)
        second = (self.beta2 * state.second).addcmul_(gradient, gradient, value=1 - self.beta2)
        scale = second.sqrt().div_(math.sqrt(1 - self.beta2**count)).add_(self.epsilon)
        moved = torch.addcdiv(parameters, first, scale, value=-self.lr / (1 - self.beta1**count))
        return moved, AdamState(state.step + 1, first, second)
