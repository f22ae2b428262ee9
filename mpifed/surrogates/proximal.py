"""Regularisers g with their proximal maps, for the quadratic surrogate.

prox of rho g at s is argmin over theta of g(theta) + ||theta - s||^2 / (2 rho). Formulas as in
Combettes and Pesquet 2011, table 10.2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from mpifed.errors import InputError


@dataclass(frozen=True)
class Regulariser:
    """A function g of flat vectors (d,), with its proximal map.

    Attributes
    ----------
    value : Callable[[Tensor], float]
        Returns g(theta).
    prox : Callable[[Tensor, float], Tensor]
        Returns the proximal map of rho g at s, for (s, rho).
    preimage : Callable[[Tensor, float], Tensor]
        Returns an s with prox(s, rho) = theta, for (theta, rho) with theta in the domain of g.
    onto_domain : Callable[[Tensor], Tensor]
        Returns the Euclidean projection on the domain of g.
    """

    value: Callable[[Tensor], float]
    prox: Callable[[Tensor, float], Tensor]
    preimage: Callable[[Tensor, float], Tensor]
    onto_domain: Callable[[Tensor], Tensor] = lambda theta: theta


SLACK = 1e-12
"""By how much rounding may carry a projected point out of its set, relative to the radius."""


def none() -> Regulariser:
    """Return g = 0."""
    return Regulariser(lambda theta: 0.0, lambda s, rho: s, lambda theta, rho: theta)


def l1(strength: float) -> Regulariser:
    """Return g = strength ||theta||_1; its proximal map is soft thresholding.

    Parameters
    ----------
    strength : float
        The factor.

    Returns
    -------
    Regulariser
        G.

    Examples
    --------
    >>> l1(1.0).prox(torch.tensor([3.0, -0.5]), 1.0)
    tensor([2., -0.])
    """
    return Regulariser(
        lambda theta: strength * float(theta.abs().sum()),
        lambda s, rho: torch.sign(s) * (s.abs() - rho * strength).clamp(min=0),
        lambda theta, rho: theta + rho * strength * torch.sign(theta),
    )


def ridge(strength: float) -> Regulariser:
    """Return g = strength / 2 ||theta||^2; its proximal map is a scaling.

    Parameters
    ----------
    strength : float
        The factor.

    Returns
    -------
    Regulariser
        G.
    """
    return Regulariser(
        lambda theta: 0.5 * strength * float(theta @ theta),
        lambda s, rho: s / (1 + rho * strength),
        lambda theta, rho: theta * (1 + rho * strength),
    )


def box(radius: float) -> Regulariser:
    """Return the indicator of |theta_j| <= radius; its proximal map is clipping.

    Parameters
    ----------
    radius : float
        The bound.

    Returns
    -------
    Regulariser
        G.
    """
    return _indicating(
        lambda theta: float(theta.abs().max()), lambda v: v.clamp(-radius, radius), radius
    )


def ball(radius: float) -> Regulariser:
    """Return the indicator of ||theta|| <= radius; its proximal map is the projection on the ball.

    Parameters
    ----------
    radius : float
        The bound.

    Returns
    -------
    Regulariser
        G.

    Examples
    --------
    >>> ball(1.0).prox(torch.tensor([3.0, 4.0]), 1.0)
    tensor([0.6000, 0.8000])
    """
    return _indicating(
        lambda theta: float(torch.linalg.vector_norm(theta)),
        lambda v: v / (torch.linalg.vector_norm(v) / radius).clamp(min=1),
        radius,
    )


def group(strength: float, group_size: int) -> Regulariser:
    """Return strength times the sum of norms of consecutive groups: block soft thresholding.

    Parameters
    ----------
    strength : float
        The factor.
    group_size : int
        The length of a group.

    Returns
    -------
    Regulariser
        G.
    """

    def norms(v: Tensor) -> Tensor:
        return torch.linalg.vector_norm(v.view(-1, group_size), dim=1, keepdim=True)

    def prox(s: Tensor, rho: float) -> Tensor:
        size = norms(s)
        kept = torch.where(size > rho * strength, 1 - rho * strength / size, 0.0)
        return (s.view(-1, group_size) * kept).flatten()

    def preimage(theta: Tensor, rho: float) -> Tensor:
        size = norms(theta)
        grown = torch.where(size > 0, 1 + rho * strength / size, 1.0)
        return (theta.view(-1, group_size) * grown).flatten()

    return Regulariser(lambda theta: strength * float(norms(theta).sum()), prox, preimage)


def regulariser(
    name: str, dimension: int, strength: float, radius: float, group_size: int
) -> Regulariser:
    """Return the regulariser called ``name``.

    Parameters
    ----------
    name : str
        One of none, l1, ridge, box, ball and group.
    dimension : int
        The length of the vectors.
    strength : float
        The factor of l1, ridge and group.
    radius : float
        The bound of box and ball.
    group_size : int
        The length of the groups of group.

    Returns
    -------
    Regulariser
        G.

    Raises
    ------
    InputError
        If groups do not divide the vector.
    """
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
) -> Regulariser:
    """The indicator of ``size`` <= ``radius``, whose proximal map is the projection ``onto``."""
    return Regulariser(
        lambda theta: 0.0 if size(theta) <= radius * (1 + SLACK) else math.inf,
        lambda s, rho: onto(s),
        lambda theta, rho: theta,
        onto,
    )
