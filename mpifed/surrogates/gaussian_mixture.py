"""Gaussian mixtures by expectation maximisation, in s-space.

Dieuleveut et al. 2025, appendix C.2, with the over-complete statistic: one block for each of the L
components and not L - 1, so that psi = 0 and phi are the same on every client. With r_l(z) the
posterior probability of component l,

    weights and covariances known:  S̄ = (r_l z, r_l),       T(s)_l = (s2_l I + lambda C_l)^-1 s1_l
    all learnt:                     S̄ = (r_l z, r_l, r_l z zᵀ)

S has s2 in the simplex; where all is learnt each [[s3, s1], [s1ᵀ, s2]] is positive semidefinite,
as the means of r_l (z, 1) (z, 1)ᵀ are.

The penalty is lambda / 2 sum ||m_l||^2 where only means are learnt, lambda / 2 sum m_lᵀ C_l^-1 m_l
where all is, which keeps T in closed form. Learnt covariances have no eigenvalue below a floor:
that is a constraint of the problem, and T its exact minimiser (eigenvalues are clipped), so the
objective still falls in every step.

``semidefinite_with_shares`` projects on S where all is learnt.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from scipy.optimize import brentq
from torch import Tensor

from mpifed.errors import InputError
from mpifed.surrogate import (
    Description,
    Surrogate,
    client_means,
    each_row,
    eigenvalues_at_least,
    padded,
    positive_semidefinite,
    simplex,
)

# Each component's weight in s is at least this, so that T is unique.
WEIGHT_FLOOR = 1e-9


@dataclass(frozen=True)
class MixtureParameters:
    """The parameters of a Gaussian mixture."""

    means: Tensor
    covariances: Tensor
    weights: Tensor

    def log_joint(self, z: Tensor) -> Tensor:
        """Return ln weight + ln density of each component, (samples, L)."""
        columns = []
        for mean, covariance, weight in zip(
            self.means, self.covariances, self.weights, strict=True
        ):
            factor = torch.linalg.cholesky(covariance)
            identity = torch.eye(len(factor), dtype=factor.dtype)
            whitening = torch.linalg.solve_triangular(factor, identity, upper=False)
            white = (z - mean) @ whitening.T
            constant = torch.log(weight) + whitening.diagonal().log().sum()
            columns.append(constant - 0.5 * (white * white).sum(1))
        dimension = self.means.shape[1]
        return torch.stack(columns, 1) - 0.5 * dimension * math.log(2 * math.pi)

    def responsibilities(self, z: Tensor) -> Tensor:
        """Return the posterior probabilities of the components, (samples, L)."""
        joint = self.log_joint(z)
        return torch.exp(joint - torch.logsumexp(joint, 1, keepdim=True))


def weights_of(numbers: list[float] | None, components: int) -> Tensor:
    """Return the weights that a configuration gives, or equal ones: float64 (components,)."""
    weights = np.full(components, 1 / components) if numbers is None else np.array(numbers, float)
    if weights.shape != (components,) or abs(weights.sum() - 1) > 1e-9:
        raise InputError(
            f"algorithm.surrogate.weights is {numbers}; it must be {components} numbers with sum 1"
        )
    return torch.from_numpy(weights)


def covariances_of(matrices: list[list[list[float]]] | None, components: int, p: int) -> Tensor:
    """Return the covariances that a configuration gives, or identities: (components, p, p)."""
    if matrices is None:
        return torch.eye(p, dtype=torch.float64).repeat(components, 1, 1)
    lengths = [len(row) for matrix in matrices for row in matrix]
    if len(matrices) == components and lengths == [p] * components * p:
        covariances = torch.tensor(matrices, dtype=torch.float64).view(components, p, p)
        if (
            torch.equal(covariances, covariances.mT)
            and float(torch.linalg.eigvalsh(covariances).min()) > 0
        ):
            return covariances
    raise InputError(
        f"algorithm.surrogate.covariances is {matrices}; it must be {components} symmetric "
        f"positive definite matrices of {p} x {p}"
    )


def semidefinite_with_shares(matrices: Tensor, floor: float) -> Tensor:
    """Return the nearest semidefinite matrices whose last diagonal entries sum to 1."""
    symmetric = (matrices + matrices.mT) / 2
    shares = symmetric[:, -1, -1]
    floored = symmetric.clone()
    floored[:, -1, -1] = simplex(shares, floor)
    if all(torch.equal(positive_semidefinite(one), one) for one in floored):
        return floored

    def clipped(prices: Tensor) -> Tensor:
        lowered = symmetric.clone()
        lowered[:, -1, -1] -= prices
        values, vectors = torch.linalg.eigh(lowered)
        raised = (vectors * values.clamp(min=0)[:, None]) @ vectors.mT
        return (raised + raised.mT) / 2

    def above_floor(one: int, price: float) -> float:
        return float(clipped(torch.full_like(shares, price))[one, -1, -1]) - floor

    def total(price: float) -> float:
        at = clipped(torch.full_like(shares, price))[:, -1, -1]
        return float(at.clamp(min=floor).sum()) - 1

    # Clipping adds to a diagonal entry, so that each is at least A - nu.
    price = _root(total, float(shares.sum() - 1) / len(shares))
    prices = torch.full_like(shares, price)
    for one in (clipped(prices)[:, -1, -1] < floor).nonzero()[:, 0].tolist():
        low = float(shares[one]) - floor
        prices[one] = _root(partial(above_floor, one), low)
    projected = clipped(prices)
    projected[:, -1, -1] = projected[:, -1, -1].clamp(min=floor)
    return projected


def _root(falling: Callable[[float], float], low: float) -> float:
    """Return the root of a decreasing function that is at least 0 at ``low``, but for rounding."""
    if falling(low) <= 0:
        return low
    step = 1.0
    while falling(low + step) > 0:
        step *= 2
    return float(brentq(falling, low, low + step, xtol=1e-15, rtol=1e-15))


@dataclass(frozen=True)
class MixtureSurrogate(Surrogate):
    """A Gaussian mixture in MM form."""

    dimension: int
    weights: Tensor
    covariances: Tensor
    ridge: float
    learn_all: bool
    covariance_floor: float
    init_scale: float

    @property
    def components(self) -> int:
        """L, the number of components."""
        return len(self.weights)

    @property
    def size(self) -> int:  # type: ignore[override]
        """The length of s."""
        p = self.dimension
        return self.components * (p + 1 + self.learn_all * p * p)

    @property
    def n_parameters(self) -> int:  # type: ignore[override]
        """The length of theta."""
        p = self.dimension
        return self.components * (p + self.learn_all * (p * p + 1))

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Return normal means of deviation ``init_scale`` with the given other parameters.

        Where all is learnt they are shortened to w / sqrt(lambda (w + lambda)) in the norm of C^-1:
        the moments of which T makes longer ones are not semidefinite.
        """
        drawn = generator.standard_normal((self.components, self.dimension)) * self.init_scale
        means = torch.from_numpy(drawn)
        if self.learn_all and self.ridge:
            solved = torch.linalg.solve(self.covariances, means[:, :, None])[:, :, 0]
            most = self.weights / torch.sqrt(self.ridge * (self.weights + self.ridge))
            means *= (most / (means * solved).sum(1).sqrt()).clamp(max=1)[:, None]
        return self.join(MixtureParameters(means, self.covariances, self.weights)).numpy()

    def split(self, theta: Tensor) -> MixtureParameters:
        """Return the mixture of one theta (n_parameters,)."""
        count, p = self.components, self.dimension
        means = theta[: count * p].view(count, p)
        if not self.learn_all:
            return MixtureParameters(means, self.covariances, self.weights)
        return MixtureParameters(means, theta[count * p : -count].view(count, p, p), theta[-count:])

    def join(self, mixture: MixtureParameters) -> Tensor:
        """Return the theta of a mixture, flat."""
        if not self.learn_all:
            return mixture.means.flatten()
        parts = (mixture.means, mixture.covariances, mixture.weights)
        return torch.cat([part.flatten() for part in parts])

    def _blocks(self, s: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return s1 (L, p), s2 (L,) and s3 (L, p, p); s3 is empty where only means are learnt."""
        count, p = self.components, self.dimension
        first, second, third = s.split([count * p, count, len(s) - count * (p + 1)])
        return first.view(count, p), second, third.view(-1, p, p)

    def responsibilities(self, z: Tensor, theta: Tensor) -> Tensor:
        """Return r_l(z), the posterior probabilities, (samples, L)."""
        return self.split(theta).responsibilities(z)

    def statistics(self, z: Tensor, theta: Tensor, offsets: np.ndarray) -> Tensor:
        """Return each client's mean of S̄; see ``Surrogate.statistics``."""
        return client_means(self._mean_statistic, z, theta, offsets)

    def _mean_statistic(self, z: Tensor, theta: Tensor) -> Tensor:
        r = self.responsibilities(z, theta)
        parts = [(r.T @ z).flatten() / len(z), r.mean(0)]
        if self.learn_all:
            parts += [(column[:, None] * z).T @ z / len(z) for column in r.T]
        return torch.cat([part.flatten() for part in parts])

    def minimiser(self, s: Tensor) -> Tensor:
        """Return T(s), row by row, for s2 > 0, or lambda > 0 where only means are learnt."""
        return each_row(self._minimiser, s)

    def _minimiser(self, s: Tensor) -> Tensor:
        first, second, third = self._blocks(s)
        if not self.learn_all:
            identity = torch.eye(self.dimension, dtype=s.dtype)
            systems = second[:, None, None] * identity + self.ridge * self.covariances
            return torch.cat(
                [torch.linalg.solve(a, b) for a, b in zip(systems, first, strict=True)]
            )
        second = second.clamp(min=WEIGHT_FLOOR)
        means = first / (second + self.ridge)[:, None]
        scatters = (third + third.mT) / 2 - first[:, :, None] * means[:, None, :]
        covariances = [
            self._floored((scatter + scatter.T) / 2 / weight)
            for scatter, weight in zip(scatters, second, strict=True)
        ]
        return self.join(MixtureParameters(means, torch.stack(covariances), second / second.sum()))

    def _floored(self, covariance: Tensor) -> Tensor:
        return eigenvalues_at_least(self.covariance_floor, covariance)

    def project(self, s: Tensor) -> Tensor:
        """Return the projection on S, row by row."""
        return each_row(self._project, s)

    def _project(self, s: Tensor) -> Tensor:
        first, second, third = self._blocks(s)
        if not self.learn_all:
            return torch.cat([first.flatten(), simplex(second, WEIGHT_FLOOR)])
        above = torch.cat([third, first[:, :, None]], 2)
        below = torch.cat([first, second[:, None]], 1)
        moments = torch.cat([above, below[:, None]], 1)
        m = semidefinite_with_shares(moments, WEIGHT_FLOOR)
        parts = (m[:, -1, :-1], m[:, -1, -1], m[:, :-1, :-1])
        return torch.cat([part.flatten() for part in parts])

    def project_parameters(self, theta: Tensor) -> Tensor:
        """Return theta projected on its domain."""
        return each_row(self._project_parameters, theta) if self.learn_all else theta

    def _project_parameters(self, theta: Tensor) -> Tensor:
        mixture = self.split(theta)
        symmetric = (mixture.covariances + mixture.covariances.mT) / 2
        floored = torch.stack([self._floored(one) for one in symmetric])
        return self.join(
            MixtureParameters(mixture.means, floored, simplex(mixture.weights, WEIGHT_FLOOR))
        )

    def losses(self, z: Tensor, theta: Tensor) -> Tensor:
        """Return the negative log-likelihood -ln p(z) of each sample, (samples,)."""
        return -torch.logsumexp(self.split(theta).log_joint(padded(z.double())), 1)[: len(z)]

    def penalty(self, theta: Tensor) -> float:
        """Return g(theta); infinite where a learnt covariance has an eigenvalue below the floor."""
        mixture = self.split(theta)
        if not self.learn_all:
            return 0.5 * self.ridge * float((theta * theta).sum())
        lowest = float(torch.linalg.eigvalsh(mixture.covariances).min())
        rounding = 1e-14 * float(mixture.covariances.abs().max())
        if lowest < self.covariance_floor * (1 - 1e-6) - rounding:
            return math.inf
        solved = torch.linalg.solve(mixture.covariances, mixture.means[:, :, None])[:, :, 0]
        return 0.5 * self.ridge * float((mixture.means * solved).sum())

    def surrogate_of(self, theta: Tensor) -> Tensor:
        """Return an s with T(s) = theta, shape (size,)."""
        mixture = self.split(theta)
        if not self.learn_all:
            even = torch.full_like(self.weights, 1 / self.components)
            pulled = torch.einsum("lij,lj->li", self.covariances, mixture.means) * self.ridge
            return torch.cat([(mixture.means / self.components + pulled).flatten(), even])
        first = mixture.means * (mixture.weights + self.ridge)[:, None]
        third = (
            mixture.weights[:, None, None] * mixture.covariances
            + first[:, :, None] * mixture.means[:, None, :]
        )
        return torch.cat([first.flatten(), mixture.weights, third.flatten()])

    def parts(self, theta: Tensor) -> dict[str, Tensor]:
        """Return ``means`` (L, p), ``covariances`` (L, p, p) and ``weights`` (L,)."""
        return dict(vars(self.split(theta)))


def gaussian_mixture(
    data: Description,
    *,
    components: Annotated[int, Ge(1)] = 3,
    weights: list[Annotated[float, Gt(0)]] | None = None,
    covariances: list[list[list[float]]] | None = None,
    ridge: Annotated[float, Ge(0)] = 0.01,
    learn: Literal["means", "all"] = "means",
    covariance_floor: Annotated[float, Gt(0)] = 1e-6,
    init_scale: Annotated[float, Gt(0)] = 1.0,
) -> MixtureSurrogate:
    """Gaussian mixture.

    Parameters
    ----------
    data : Description
        What the samples are.
    components : int
        Number of Gaussians.
    weights : list of float, optional
        Their probabilities. None makes all equal.
    covariances : list of matrices, optional
        Their covariances. None is the identity for each.
    ridge : float
        Weight of the penalty on the means.
    learn : {'means', 'all'}
        Whether covariances and weights are learnt too.
    covariance_floor : float
        Least eigenvalue of a covariance that is learnt.
    init_scale : float
        Standard deviation of the first means, which are shortened where all is learnt and
        ``ridge`` allows no such moments.
    """
    p = math.prod(data.input_shape)
    w, fixed = weights_of(weights, components), covariances_of(covariances, components, p)
    return MixtureSurrogate(p, w, fixed, ridge, learn == "all", covariance_floor, init_scale)
