"""Input-convex networks, whose gradients are optimal transport maps."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from torch import Tensor

from mpifed.data.base import Description, ProblemDescription
from mpifed.errors import InputError
from mpifed.models.base import Parametrised

# All parameters are drawn from N(0, 0.1^2).
INIT_STD = 0.1


@dataclass(frozen=True)
class DenseICNN(Parametrised):
    """f(x) = <w, z_L> + strong_convexity / 2 ||x||^2, convex in x where W_l and w are >= 0."""

    dimension: int
    hidden: tuple[int, ...]
    strong_convexity: float = 1e-4
    problem: Any = None

    @property
    def width(self) -> int:
        """H, the number of convex quadratics."""
        return sum(self.hidden)

    @property
    def n_skip(self) -> int:
        """Number of entries of a, b and c, which may have any sign; all after them must be >= 0."""
        return self.width * (2 * self.dimension + 1)

    @property
    def n_parameters(self) -> int:
        pairs = itertools.pairwise(self.hidden)
        return self.n_skip + sum(a * b for a, b in pairs) + self.hidden[-1]

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Draw all parameters from N(0, 0.1^2), then ``convexify``: float64 (n_parameters,)."""
        values = generator.normal(0, INIT_STD, self.n_parameters)
        np.maximum(values[self.n_skip :], 0, out=values[self.n_skip :])
        return values

    def convexify(self, parameters: Tensor) -> Tensor:
        """Return the nearest parameters for which f is convex, (P,): W_l and w cut off at 0."""
        nearest = parameters.clone()
        nearest[self.n_skip :].clamp_(min=0)
        return nearest

    def at(self, parameters: Tensor, x: Tensor) -> PotentialValues:
        """Evaluate f at the points x (B, dimension) with parameters (n_parameters,)."""
        skip, bias, convex, final = self._split(parameters)
        products = skip @ x.T
        roots = products[: self.width]
        inputs = torch.addcmul(products[self.width :], roots, roots).add_(bias[:, None])
        first, *deeper = inputs.split(self.hidden)
        states, slopes = [first], []
        for weight, u in zip(convex, deeper, strict=True):
            u.addmm_(weight, states[-1])
            slopes.append(torch.exp(u.clamp(max=0)))
            states.append(u.clamp_(min=0).add_(slopes[-1]).sub_(1))
        adjoint = torch.empty_like(inputs)
        levels = adjoint.split(self.hidden)
        levels[-1].copy_(final[:, None].expand_as(levels[-1]))
        for below in reversed(range(len(convex))):
            levels[below + 1].mul_(slopes[below])
            torch.mm(convex[below].T, levels[below + 1], out=levels[below])
        return PotentialValues(self, parameters, x, roots, tuple(states), tuple(slopes), adjoint)

    def value(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Return f(x), (B,), for parameters (n_parameters,) and x (B, dimension)."""
        return self.at(parameters, x).value()

    def push(self, parameters: Tensor, x: Tensor) -> Tensor:
        """Return the gradient of f in x, (B, dimension); for the arguments see ``value``."""
        return self.at(parameters, x).push()

    def _split(self, parameters: Tensor) -> tuple[Tensor, Tensor, list[Tensor], Tensor]:
        """(a and b (2 H, dimension), c (H,), [W_2 .. W_L], w (h_L,)), views of ``parameters``."""
        shapes = [(b, a) for a, b in itertools.pairwise(self.hidden)]
        sizes = [2 * self.width * self.dimension, self.width]
        skip, bias, *convex, final = parameters.split(
            [*sizes, *(math.prod(shape) for shape in shapes), self.hidden[-1]]
        )
        weights = [part.view(shape) for part, shape in zip(convex, shapes, strict=True)]
        return skip.view(-1, self.dimension), bias, weights, final


@dataclass(frozen=True)
class PotentialValues:
    """f at B points, with what its derivatives share."""

    model: DenseICNN
    parameters: Tensor
    x: Tensor
    roots: Tensor
    states: tuple[Tensor, ...]
    slopes: tuple[Tensor, ...]
    adjoint: Tensor

    def value(self) -> Tensor:
        """Return f(x), (B,)."""
        final = self.model._split(self.parameters)[-1]
        return final @ self.states[-1] + self.model.strong_convexity / 2 * self.x.square().sum(1)

    def push(self) -> Tensor:
        """Return the gradient of f in x, (B, dimension)."""
        quadratic, linear = self.model._split(self.parameters)[0].chunk(2)
        pushed = self.model.strong_convexity * self.x
        pushed.addmm_((self.adjoint * self.roots).T, quadratic, alpha=2)
        return pushed.addmm_(self.adjoint.T, linear)

    def value_gradient(self, weight: float) -> Tensor:
        """Return the gradient of weight * sum_b f(x_b) in the parameters, (n_parameters,)."""
        gradient = torch.empty_like(self.parameters)
        skip, bias, convex, final = self.model._split(gradient)
        torch.mm(torch.cat([2 * self.adjoint * self.roots, self.adjoint]), self.x, out=skip)
        torch.sum(self.adjoint, 1, out=bias)
        for part, above, state in zip(
            convex, self.adjoint.split(self.model.hidden)[1:], self.states[:-1], strict=True
        ):
            torch.mm(above, state.T, out=part)
        torch.sum(self.states[-1], 1, out=final)
        return gradient.mul_(weight)

    def along(self, v: Tensor) -> Tangent:
        """Differentiate D = sum_b <v_b, push(x_b)> for constant directions v (B, dimension)."""
        skip, _, convex, _ = self.model._split(self.parameters)
        products = skip @ v.T
        roots = products[: self.model.width]
        inputs = torch.addcmul(products[self.model.width :], self.roots, roots, value=2)
        first, *deeper = inputs.split(self.model.hidden)
        moves, bends = [first], []
        # D is the derivative of sum_b f(x_b) along v: one pass forward computes the tangents of
        # z_l, one backward the derivatives of D in q_l(x). celu'' is celu' below 0 and 0 above.
        for weight, slope, u, level in zip(
            convex, self.slopes, deeper, self.adjoint.split(self.model.hidden)[1:], strict=True
        ):
            u.addmm_(weight, moves[-1])
            bends.append(torch.where(slope < 1, level * u, 0))
            moves.append(u.mul_(slope))
        adjoint = torch.empty_like(inputs)
        levels = adjoint.split(self.model.hidden)
        levels[-1].zero_()
        for below in reversed(range(len(convex))):
            levels[below + 1].mul_(self.slopes[below]).add_(bends[below])
            torch.mm(convex[below].T, levels[below + 1], out=levels[below])
        return Tangent(self, v, roots, tuple(moves), adjoint)


@dataclass(frozen=True)
class Tangent:
    """Derivatives of D = sum_b <v_b, push(x_b)>, which are second derivatives of f."""

    point: PotentialValues
    v: Tensor
    roots: Tensor
    moves: tuple[Tensor, ...]
    adjoint: Tensor

    def gradient(self, value_weight: float = 0.0) -> Tensor:
        """Return the gradient of D + value_weight * sum_b f(x_b) in the parameters, (P,)."""
        point, model = self.point, self.point.model
        adjoint = self.adjoint
        if value_weight:
            adjoint = torch.add(adjoint, point.adjoint, alpha=value_weight)
        gradient = torch.empty_like(point.parameters)
        skip, bias, convex, final = model._split(gradient)
        quadratic = (adjoint * point.roots).addcmul_(point.adjoint, self.roots).mul_(2)
        torch.mm(torch.cat([quadratic, adjoint]), point.x, out=skip)
        skip.addmm_(torch.cat([2 * point.adjoint * point.roots, point.adjoint]), self.v)
        torch.sum(adjoint, 1, out=bias)
        for part, above, change, state, move in zip(
            convex,
            point.adjoint.split(model.hidden)[1:],
            adjoint.split(model.hidden)[1:],
            point.states[:-1],
            self.moves[:-1],
            strict=True,
        ):
            torch.mm(above, move.T, out=part).addmm_(change, state.T)
        torch.sum(self.moves[-1], 1, out=final)
        if value_weight:
            final.add_(point.states[-1].sum(1), alpha=value_weight)
        return gradient

    def curvature(self) -> Tensor:
        """Return the gradient of D in x, the Hessian of f at x_b times v_b: (B, dimension)."""
        point, model = self.point, self.point.model
        quadratic, linear = model._split(point.parameters)[0].chunk(2)
        mixed = (self.adjoint * point.roots).addcmul_(point.adjoint, self.roots)
        product = model.strong_convexity * self.v
        product.addmm_(mixed.T, quadratic, alpha=2)
        return product.addmm_(self.adjoint.T, linear)


def dense_icnn(
    dimension: int,
    *,
    hidden: list[Annotated[int, Ge(1)]] | None = None,
    strong_convexity: Annotated[float, Ge(0)] = 1e-4,
) -> DenseICNN:
    """Make a convex potential with the widths of the Wasserstein-2 benchmark. ``hidden`` null is
    [max(2 d, 64), max(2 d, 64), max(d, 32)] for dimension d (published code of Korotin et al.
    2021).
    """
    if hidden is not None and not hidden:
        raise InputError("model.hidden is []; it must have at least one width")
    wide = max(2 * dimension, 64)
    widths = (wide, wide, max(dimension, 32)) if hidden is None else tuple(hidden)
    return DenseICNN(dimension, widths, strong_convexity)


def icnn(
    data: Description,
    *,
    hidden: list[Annotated[int, Ge(1)]] | None = None,
    strong_convexity: Annotated[float, Ge(0)] = 1e-4,
) -> DenseICNN:
    """Input-convex network: the potential of an optimal transport map.

    Parameters
    ----------
    data : Description
        What the samples are.
    hidden : list of int, optional
        Widths of the hidden layers. None is [w, w, max(d, 32)] with w = max(2 d, 64), for d inputs.
    strong_convexity : float
        Factor of ||x||^2 / 2, which is added.
    """
    dimension = math.prod(data.input_shape)
    network = dense_icnn(dimension, hidden=hidden, strong_convexity=strong_convexity)
    return replace(network, problem=data.problem if isinstance(data, ProblemDescription) else None)
