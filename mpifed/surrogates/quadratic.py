"""The quadratic surrogate of a smooth loss: proximal gradient in MM form.

Dieuleveut et al. 2025, Example 1: for f with an L-Lipschitz gradient and rho in (0, 1/L],
psi = ||theta||^2 / (2 rho), phi = theta / rho, S̄(Z, tau) = tau - rho grad l(Z, tau), S = R^d and
T = prox of rho g. A sample is z = (x, y), the target in the last column.

``regulariser`` returns g with its proximal map, and ``smooth_loss`` the losses l with Lipschitz
gradients.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import Tensor

from mpifed.errors import InputError
from mpifed.model import logistic, sigmoid
from mpifed.surrogate import Description, Surrogate, client_means, each_row, padded, with_target

# By how much rounding may carry a projected point out of its set, relative to the radius.
SLACK = 1e-12

# Targets that a logistic loss may meet, two of them at once.
LABELS = (-1, 0, 1)

# Parameters up to which L is measured: E x xᵀ is summed over clients, and has its square.
MOST_MEASURED = 2048

# Numbers of E x xᵀ that are summed at a time, so that no rank holds all of it for every client.
BAND = 1 << 16


@dataclass(frozen=True)
class ProximalTerm:
    """A function g of flat vectors (d,), with its proximal map."""

    value: Callable[[Tensor], float]
    prox: Callable[[Tensor, float], Tensor]
    preimage: Callable[[Tensor, float], Tensor]
    onto_domain: Callable[[Tensor], Tensor] = lambda theta: theta


def none() -> ProximalTerm:
    """Return g = 0."""
    return ProximalTerm(lambda theta: 0.0, lambda s, rho: s, lambda theta, rho: theta)


def l1(strength: float) -> ProximalTerm:
    """Return g = strength ||theta||_1; its proximal map is soft thresholding."""
    return ProximalTerm(
        lambda theta: strength * float(theta.abs().sum()),
        lambda s, rho: torch.sign(s) * (s.abs() - rho * strength).clamp(min=0),
        lambda theta, rho: theta + rho * strength * torch.sign(theta),
    )


def ridge(strength: float) -> ProximalTerm:
    """Return g = strength / 2 ||theta||^2; its proximal map is a scaling."""
    return ProximalTerm(
        lambda theta: 0.5 * strength * float(theta @ theta),
        lambda s, rho: s / (1 + rho * strength),
        lambda theta, rho: theta * (1 + rho * strength),
    )


def box(radius: float) -> ProximalTerm:
    """Return the indicator of |theta_j| <= radius; its proximal map is clipping."""
    return _indicating(
        lambda theta: float(theta.abs().max()), lambda v: v.clamp(-radius, radius), radius
    )


def ball(radius: float) -> ProximalTerm:
    """Return the indicator of ||theta|| <= radius; its proximal map is the projection on
    the ball.
    """
    return _indicating(
        lambda theta: float(torch.linalg.vector_norm(theta)),
        lambda v: v / (torch.linalg.vector_norm(v) / radius).clamp(min=1),
        radius,
    )


def group(strength: float, group_size: int) -> ProximalTerm:
    """Return strength times the sum of norms of consecutive groups: block soft thresholding."""

    def norms(v: Tensor) -> Tensor:
        return torch.linalg.vector_norm(v.view(-1, group_size), dim=1, keepdim=True)

    def prox(s: Tensor, rho: float) -> Tensor:
        size = norms(s)
        factors = torch.where(size > rho * strength, 1 - rho * strength / size, 0.0)
        return (s.view(-1, group_size) * factors).flatten()

    def preimage(theta: Tensor, rho: float) -> Tensor:
        size = norms(theta)
        grown = torch.where(size > 0, 1 + rho * strength / size, 1.0)
        return (theta.view(-1, group_size) * grown).flatten()

    return ProximalTerm(lambda theta: strength * float(norms(theta).sum()), prox, preimage)


def regulariser(
    name: str, dimension: int, strength: float, radius: float, group_size: int
) -> ProximalTerm:
    """Return the regulariser called ``name``."""
    if name == "group" and dimension % group_size:
        raise InputError(
            f"algorithm.surrogate.group_size is {group_size}; it must divide the {dimension} "
            "parameters into groups"
        )
    return {
        "none": none,
        "l1": lambda: l1(strength),
        "ridge": lambda: ridge(strength),
        "box": lambda: box(radius),
        "ball": lambda: ball(radius),
        "group": lambda: group(strength, group_size),
    }[name]()


def _indicating(
    size: Callable[[Tensor], float], onto: Callable[[Tensor], Tensor], radius: float
) -> ProximalTerm:
    """The indicator of ``size`` <= ``radius``, whose proximal map is the projection ``onto``."""
    return ProximalTerm(
        lambda theta: 0.0 if size(theta) <= radius * (1 + SLACK) else math.inf,
        lambda s, rho: onto(s),
        lambda theta, rho: theta,
        onto,
    )


class SmoothLoss(ABC):
    """A loss l(z, theta) with a Lipschitz gradient."""

    curvature: ClassVar[float | None] = None
    labels: ClassVar[bool] = False

    @abstractmethod
    def values(self, z: Tensor, theta: Tensor) -> Tensor:
        """Return the losses of samples, (samples,)."""

    @abstractmethod
    def gradient(self, z: Tensor, theta: Tensor) -> Tensor:
        """Return the gradient of their mean in theta, (d,)."""


class LeastSquares(SmoothLoss):
    """Half the squared error of x' theta."""

    curvature = 1.0

    def values(self, z: Tensor, theta: Tensor) -> Tensor:
        return 0.5 * (z[:, :-1] @ theta - z[:, -1]) ** 2

    def gradient(self, z: Tensor, theta: Tensor) -> Tensor:
        x = z[:, :-1]
        return x.T @ (x @ theta - z[:, -1]) / len(z)


class Logistic(SmoothLoss):
    """The logistic loss of the label 1 and the other label, which is 0 or -1."""

    curvature, labels = 0.25, True

    def values(self, z: Tensor, theta: Tensor) -> Tensor:
        return logistic(z[:, :-1] @ theta, self._labels(z))

    def gradient(self, z: Tensor, theta: Tensor) -> Tensor:
        x = z[:, :-1]
        return x.T @ (sigmoid(x @ theta) - self._labels(z)) / len(z)

    def _labels(self, z: Tensor) -> Tensor:
        return (z[:, -1] > 0).to(z)


def smooth_loss(name: str) -> SmoothLoss:
    """Return the loss called ``name``."""
    return {"least_squares": LeastSquares, "logistic": Logistic}[name]()


@dataclass(frozen=True)
class QuadraticSurrogate(Surrogate):
    """Proximal gradient in MM form; theta and s have length d."""

    n_parameters: int
    rho: float
    loss: SmoothLoss
    regulariser: ProximalTerm
    measured: bool = False
    smoothness: float = math.nan

    @property
    def size(self) -> int:  # type: ignore[override]
        """The length of s, d."""
        return self.n_parameters

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Return T of a standard normal s, which lies in the domain of g."""
        return self.minimiser(torch.from_numpy(generator.standard_normal(self.size))).numpy()

    def statistics(self, z: Tensor, theta: Tensor, offsets: np.ndarray) -> Tensor:
        """Return each client's tau - rho grad f_i(tau); see ``Surrogate.statistics``."""
        return client_means(
            lambda samples, tau: tau - self.rho * self.loss.gradient(samples, tau),
            z,
            theta,
            offsets,
        )

    def minimiser(self, s: Tensor) -> Tensor:
        """Return T(s), the proximal map of rho g, row by row."""
        return each_row(lambda row: self.regulariser.prox(row, self.rho), s)

    def project(self, s: Tensor) -> Tensor:
        """Return s: S is R^d."""
        return s

    def project_parameters(self, theta: Tensor) -> Tensor:
        """Return theta projected on the box or the ball, where the regulariser is its indicator."""
        return each_row(self.regulariser.onto_domain, theta)

    def losses(self, z: Tensor, theta: Tensor) -> Tensor:
        """Return the loss of each sample, (samples,)."""
        return self.loss.values(padded(z.double()), theta)[: len(z)]

    def penalty(self, theta: Tensor) -> float:
        """Return g(theta)."""
        return self.regulariser.value(theta)

    def surrogate_of(self, theta: Tensor) -> Tensor:
        """Return an s with prox(s, rho) = theta."""
        return self.regulariser.preimage(theta, self.rho)

    def parts(self, theta: Tensor) -> dict[str, Tensor]:
        """Return ``coefficients`` (d,), one for each input."""
        return {"coefficients": theta}

    @property
    def fact_blocks(self) -> tuple[int, ...]:
        """The shares of targets -1, 0, 1 and others, and E x xᵀ by bands of rows, if needed."""
        d, shares = self.n_parameters, (len(LABELS) + 1,) if self.loss.labels else ()
        if self.loss.curvature is None or d > MOST_MEASURED:
            return shares
        return shares + tuple(d * (min(d, first + self._band) - first) for first in self._firsts)

    @property
    def waits(self) -> bool:
        """Whether rho is still to be measured."""
        return self.measured

    @property
    def _band(self) -> int:
        """The number of rows of E x xᵀ per block."""
        return max(1, BAND // self.n_parameters)

    @property
    def _firsts(self) -> range:
        """The first row of each block."""
        return range(0, self.n_parameters, self._band)

    def facts(self, z: Tensor, block: int) -> Tensor:
        """Return the shares of targets of one client, or a band of its mean of x xᵀ, flat."""
        z = z.double()
        if self.loss.labels and block == 0:
            is_one = [z[:, -1] == label for label in LABELS]
            none = ~torch.stack(is_one).any(0)
            return torch.stack([mask.double().mean() for mask in (*is_one, none)])
        first, x = self._firsts[block - self.loss.labels], z[:, :-1]
        return (x[:, first : first + self._band].T @ x).flatten() / len(z)

    def conclude(self, means: Tensor) -> Tensor:
        """Return L, then the shares of targets."""
        shares = means[: len(LABELS) + 1] if self.loss.labels else means[:0]
        rows = means[len(shares) :]
        smoothness = torch.full((1,), torch.nan, dtype=torch.float64)
        if self.loss.curvature is not None and len(rows):
            gram = rows.view(self.n_parameters, self.n_parameters)
            smoothness[0] = self.loss.curvature * torch.linalg.eigvalsh((gram + gram.T) / 2)[-1]
        return torch.cat([smoothness, shares])

    def knowing(self, facts: Tensor) -> QuadraticSurrogate:
        """Return the surrogate with known L, and rho = 1 / L where it is measured."""
        if self.loss.labels:
            _check_labels(facts[1:].tolist())
        smoothness = float(facts[0])
        surrogate = replace(self, smoothness=smoothness)
        if not self.measured:
            return surrogate
        # Where all inputs are zero the loss is flat, and any step does.
        return replace(surrogate, rho=1 / smoothness if smoothness > 0 else 1.0)

    def remarks(self) -> list[str]:
        """Return a line for the log about L and rho, a warning where rho is above 1 / L."""
        if math.isnan(self.smoothness):
            return []
        line = f"the mean loss has a gradient with Lipschitz constant L = {self.smoothness:.6g}"
        if self.measured:
            return [f"{line}; rho = {self.rho:.6g}, 1 / L"]
        if self.rho * self.smoothness > 1 + 1e-9:
            return [
                f"warning: algorithm.surrogate.rho is {self.rho:g}, above 1 / L = "
                f"{1 / self.smoothness:.6g}, up to which the surrogate majorises the loss"
            ]
        return [line]


def _check_labels(shares: list[float]) -> None:
    """Refuse targets that are not two labels; ``shares`` are those of -1, 0, 1 and others."""
    minus, zero, _, other = shares
    if other or (minus and zero):
        labels = "others" if other else "all three of -1, 0 and 1"
        raise InputError(
            "algorithm.surrogate.loss is 'logistic', which needs targets in {0, 1} or in {-1, 1}, "
            f"but there are {labels}"
        )


@with_target
def quadratic(
    data: Description,
    *,
    loss: Literal["least_squares", "logistic"] = "least_squares",
    rho: Annotated[float, Gt(0)] | None = None,
    regularisation: Literal["none", "l1", "ridge", "box", "ball", "group"] = "none",
    strength: Annotated[float, Ge(0)] = 0.1,
    radius: Annotated[float, Gt(0)] = 1.0,
    group_size: Annotated[int, Ge(1)] = 1,
) -> QuadraticSurrogate:
    """Proximal gradient on linear or logistic regression.

    Parameters
    ----------
    data : Description
        What the samples are.
    loss : {'least_squares', 'logistic'}
        Loss of the linear predictor.
    rho : float, optional
        Step of the proximal gradient. None is 1 / L, for the L of the mean loss of all clients.
    regularisation : {'none', 'l1', 'ridge', 'box', 'ball', 'group'}
        The term whose proximal map is taken.
    strength : float
        Weight of ``l1``, ``ridge`` and ``group``.
    radius : float
        Size of the ``box`` and the ``ball``.
    group_size : int
        Coordinates of a ``group``.
    """
    if data.task == "regression" and data.n_classes != 1:
        raise InputError(
            f"quadratic learns one target, but the samples of '{data.source}' have {data.n_classes}"
        )
    dimension = math.prod(data.input_shape) - 1
    if dimension < 1:
        raise InputError(
            f"quadratic needs inputs and a target in each sample; data has {data.input_shape}"
        )
    smooth = smooth_loss(loss)
    if smooth.labels and data.task == "classification" and data.n_classes != 2:
        raise InputError(
            f"algorithm.surrogate.loss is 'logistic', but '{data.source}' has {data.n_classes} "
            "classes; it must have 2"
        )
    if rho is None and dimension > MOST_MEASURED:
        raise InputError(
            f"algorithm.surrogate.rho is empty, but L is measured for at most {MOST_MEASURED} "
            f"parameters, not {dimension}; give a number, at most 1 / L"
        )
    g = regulariser(regularisation, dimension, strength, radius, group_size)
    return QuadraticSurrogate(
        dimension, math.nan if rho is None else rho, smooth, g, measured=rho is None
    )
