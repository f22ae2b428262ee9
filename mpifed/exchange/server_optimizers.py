"""Server optimizers (Reddi et al. 2021, Algorithm 2): how a server moves along a mean of updates.

With delta the mean of the clients' updates in a round, x the value that they began with, and eta
the option ``lr``,

    sgd        x <- x + eta delta
    momentum   m <- beta m + delta                   x <- x + eta m       (Hsu et al. 2019)
    nesterov   the same m                            x <- x + eta (delta + beta m)
    adagrad    v <- v + delta^2
    yogi       v <- v - (1 - beta2) delta^2 sign(v - delta^2)
    adam       v <- beta2 v + (1 - beta2) delta^2

The last three have m <- beta1 m + (1 - beta1) delta and x <- x + eta m / (sqrt(v) + tau), and begin
at m = 0 and v = tau^2. All but ``sgd`` with ``lr`` 1 keep their moments in the state of the run.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from annotated_types import Ge, Gt, Lt
from torch import Tensor

from mpifed.state import Nothing, inline, server

Rate = Annotated[float, Gt(0)]
Decay = Annotated[float, Ge(0), Lt(1)]


@dataclass(frozen=True)
class Moment:
    """m, of the shape of the mean."""

    first: Tensor = server()


@dataclass(frozen=True)
class Moments(Moment):
    """m and v, of the shape of the mean, and the number of steps so far."""

    second: Tensor = server()
    step: Tensor = server()


@dataclass(frozen=True)
class Centre:
    """The last aggregate, where an aggregator begins at it, float64."""

    last: Tensor = server()


@dataclass(frozen=True)
class ServerMemory:
    """What a server remembers: what a compressor kept back, moments, and an aggregate."""

    feedback: Any = inline()
    moments: Any = inline()
    centre: Any = inline()


class ServerOptimizer(ABC):
    """Base class of server optimizers; keyword-only parameters of a subclass are its options."""

    def init(self, like: Tensor) -> Any:
        """Return the state before round 1, for means of the shape of ``like``."""
        return Moment(torch.zeros_like(like))

    @abstractmethod
    def step(self, mean: Tensor, state: Any) -> tuple[Tensor, Any]:
        """Return by how much the server moves along the mean of updates, and the new state."""


class Sgd(ServerOptimizer):
    """The mean of updates itself, times a rate; with the rate 1 this is FedAvg.

    Parameters
    ----------
    lr : float
        eta, by which the mean of updates is multiplied.
    """

    def __init__(self, *, lr: Rate = 1.0) -> None:
        self.lr = lr

    def init(self, like: Tensor) -> Nothing:
        return Nothing()

    def step(self, mean: Tensor, state: Nothing) -> tuple[Tensor, Nothing]:
        return self.lr * mean, state


class Momentum(ServerOptimizer):
    """Momentum at the server: FedAvgM (Hsu, Qi and Brown 2019).

    Parameters
    ----------
    lr : float
        eta, the rate of the server.
    beta : float
        Decay of the momentum m.
    """

    def __init__(self, *, lr: Rate = 1.0, beta: Decay = 0.9) -> None:
        self.lr, self.beta = lr, beta

    def step(self, mean: Tensor, state: Moment) -> tuple[Tensor, Moment]:
        first = self.beta * state.first + mean
        return self.lr * self.along(mean, first), Moment(first)

    def along(self, mean: Tensor, first: Tensor) -> Tensor:
        """Return the direction of the step."""
        return first


class Nesterov(Momentum):
    """Nesterov's momentum at the server: the step looks ahead along m."""

    def along(self, mean: Tensor, first: Tensor) -> Tensor:
        return mean + self.beta * first


class Adaptive(ServerOptimizer):
    """Base class of FedAdagrad, FedYogi and FedAdam, which differ in v.

    Parameters
    ----------
    lr : float
        eta, the rate of the server.
    beta1 : float
        Decay of the first moment m.
    beta2 : float
        Decay of the second moment v.
    tau : float
        What is added to sqrt(v), the degree of adaptivity.
    """

    bias_correction = False

    def __init__(
        self, *, lr: Rate = 0.1, beta1: Decay = 0.9, beta2: Decay = 0.99, tau: Rate = 1e-3
    ) -> None:
        self.lr, self.beta1, self.beta2, self.tau = lr, beta1, beta2, tau

    def init(self, like: Tensor) -> Moments:
        second = torch.full_like(like, 0.0 if self.bias_correction else self.tau**2)
        return Moments(torch.zeros_like(like), second, torch.zeros(1, dtype=torch.int64))

    @abstractmethod
    def second(self, v: Tensor, square: Tensor) -> Tensor:
        """Return the new v, with the square of the mean."""

    def step(self, mean: Tensor, state: Moments) -> tuple[Tensor, Moments]:
        m = first = self.beta1 * state.first + (1 - self.beta1) * mean
        v = second = self.second(state.second, mean.square())
        step = state.step + 1
        if self.bias_correction:
            m = first / (1 - math.pow(self.beta1, int(step)))
            v = second / (1 - math.pow(self.beta2, int(step)))
        return self.lr * m / (v.sqrt() + self.tau), Moments(first, second, step)


class Adagrad(Adaptive):
    """Adagrad at the server: FedAdagrad (Reddi et al. 2021)."""

    def __init__(self, *, lr: Rate = 0.1, beta1: Decay = 0.0, tau: Rate = 1e-3) -> None:
        super().__init__(lr=lr, beta1=beta1, beta2=1.0, tau=tau)

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v + square


class Yogi(Adaptive):
    """Yogi at the server: FedYogi (Reddi et al. 2021).

    Parameters
    ----------
    beta2 : float
        How slowly the second moment v changes.
    """

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return v - (1 - self.beta2) * square * torch.sign(v - square)


class Adam(Adaptive):
    """Adam at the server: FedAdam (Reddi et al. 2021).

    Parameters
    ----------
    bias_correction : bool
        Whether moments are corrected as in torch, from v = 0. Without it v begins at tau^2, as in
        the paper.
    """

    def __init__(self, *, bias_correction: bool = False, **moments: Any) -> None:
        super().__init__(**moments)
        self.bias_correction = bias_correction

    def second(self, v: Tensor, square: Tensor) -> Tensor:
        return self.beta2 * v + (1 - self.beta2) * square


def averaged_buffers(model: Tensor, average: Tensor, n_buffers: int) -> Tensor:
    """Return a server's new model, with running statistics that are averaged."""
    if not n_buffers:
        return model
    return torch.cat([model[..., :-n_buffers], average[..., -n_buffers:]], -1)
