"""The objectives of potential and conjugate in federated optimal transport, with gradients.

Two convex networks of one shape: the gradient of f_omega maps P to Q, that of f_theta maps Q back.
Client i has (Dieuleveut et al. 2025, section 7, eq. 31 to 33)

    l_i(omega, theta) = E_{P_i} f_omega(X) + E_Q [<Y, X'> - f_omega(X')],  X' = grad f_theta(Y),
    R_Q(omega, theta) = E_Q ||grad f_omega(X') - Y||^2,   W_i = l_i + lambda_cycle R_Q.

As printed, W is minimised over theta too, although the conjugate is the maximum of <Y, x> - f(x):
without R_Q it has no lower bound. So ``theta_objective`` is one of

* ``mmv2``: E_Q [f_omega(X') - <Y, X'>] + lambda_cycle R_Q is minimised over theta (MMv2 of Korotin
  et al. 2021, "Do neural optimal transport solvers work?", with R_Q added);
* ``w2gn``: lambda_cycle R_Q alone, X' held constant in l_i (Korotin et al. 2021, "Wasserstein-2
  generative networks").

The joint gradient of FedAdam has ``w2gn``, or ``printed``: W as it is printed.

``cycle`` = both adds R_P = E_P ||grad f_theta(grad f_omega(X)) - X||^2 to R_Q wherever samples of P
are available, so not at the server. Expectations are means over the batch; ||.||^2 is a sum over
coordinates. Every function takes flat parameters (n_parameters,), source samples x (A, dimension)
and target samples y (B, dimension).

``FlatAdam`` takes the steps on one flat vector, from ``identity_potential``, the parameters of the
identity map. ``l2_uvp`` and ``cosine`` are distances of a map from the optimal one (Korotin et al.
2021, section 4; published code).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from mpifed.message import adam_step
from mpifed.model import DenseICNN, PotentialValues
from mpifed.state import server
from mpifed.surrogate import Benchmark, gaussian_benchmark

# Points are drawn from N(0, 3^2 I).
SPREAD = 3.0

# Fresh samples of P on which a map is scored.
SCORED = 4096


@dataclass(frozen=True)
class FlatAdamState:
    """The state of Adam."""

    step: Tensor = server()
    first: Tensor = server()
    second: Tensor = server()


@dataclass(frozen=True)
class FlatAdam:
    """Adam (Kingma and Ba 2015, Algorithm 1) on one flat vector, with a state that can be stored.

    The defaults of its constants are those of the paper and of torch.
    """

    lr: float
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8

    def init(self, parameters: Tensor) -> FlatAdamState:
        """Return the state before the first step."""
        zero = torch.zeros_like(parameters)
        return FlatAdamState(torch.zeros((), dtype=torch.int64), zero, zero)

    def step(
        self, parameters: Tensor, gradient: Tensor, state: FlatAdamState
    ) -> tuple[Tensor, FlatAdamState]:
        """Return the parameters and the state after one step."""
        count = int(state.step) + 1
        moved, moments = parameters.clone(), (state.first.clone(), state.second.clone())
        size = self.lr / (1 - self.beta1**count)
        scale = math.sqrt(1 - self.beta2**count)
        adam_step(moved, gradient, moments, (self.beta1, self.beta2), size, scale, self.epsilon)
        return moved, FlatAdamState(state.step + 1, *moments)


ThetaObjective = Literal["mmv2", "w2gn"]
JointObjective = Literal["w2gn", "printed"]
Cycle = Literal["fwd", "both"]


@dataclass(frozen=True)
class TransportObjective:
    """The networks' shape and the terms of W; see the module."""

    model: DenseICNN
    theta_objective: ThetaObjective | JointObjective = "mmv2"
    lambda_cycle: float = 1.0
    cycle: Cycle = "fwd"


def omega_gradient(
    objective: TransportObjective, omega: Tensor, theta: Tensor, x: Tensor, y: Tensor
) -> Tensor:
    """Return the gradient of W_i in omega, which a client computes (Algorithm 3, line 6)."""
    source = source_gradient(objective, omega, theta, x)
    return source + target_gradient(objective, omega, theta, y)


def source_gradient(
    objective: TransportObjective, omega: Tensor, theta: Tensor, x: Tensor
) -> Tensor:
    """Return the part of ``omega_gradient`` that depends on a client's own samples."""
    return _source(objective, omega, theta, x)[0]


def target_gradient(
    objective: TransportObjective, omega: Tensor, theta: Tensor, y: Tensor
) -> Tensor:
    """Return the part of ``omega_gradient`` that depends on samples of the target."""
    return _target(objective, omega, objective.model.at(theta, y))[0]


def theta_gradient(
    objective: TransportObjective, omega: Tensor, theta: Tensor, y: Tensor
) -> Tensor:
    """Return the gradient of what the server minimises in theta."""
    back = objective.model.at(theta, y)
    point = objective.model.at(omega, back.push())
    error = (point.push() - y) / len(y)
    direction = torch.zeros_like(error)
    if objective.lambda_cycle:
        direction.add_(point.along(error).curvature(), alpha=2 * objective.lambda_cycle)
    if objective.theta_objective == "mmv2":
        direction += error
    return back.along(direction).gradient()


def joint_gradient(
    objective: TransportObjective, omega: Tensor, theta: Tensor, x: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients in omega and theta of W_i, for ``w2gn`` with X' constant in l_i."""
    source = source_gradients(objective, omega, theta, x)
    target = target_gradients(objective, omega, theta, y)
    return source[0] + target[0], source[1] + target[1]


def source_gradients(
    objective: TransportObjective, omega: Tensor, theta: Tensor, x: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the parts of ``joint_gradient`` that depend on a client's own samples."""
    of_omega, of_theta = _source(objective, omega, theta, x)
    return of_omega, of_theta()


def target_gradients(
    objective: TransportObjective, omega: Tensor, theta: Tensor, y: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the parts of ``joint_gradient`` that depend on samples of the target."""
    of_omega, of_theta = _target(objective, omega, objective.model.at(theta, y))
    return of_omega, of_theta()


def conjugate_steps(
    objective: TransportObjective,
    omega: Tensor,
    theta: Tensor,
    optimizer: FlatAdam,
    state: FlatAdamState,
    batches: Iterable[Tensor],
) -> tuple[Tensor, FlatAdamState]:
    """Return theta after the server's steps, one per batch (Algorithm 3, line 16)."""
    for y in batches:
        gradient = theta_gradient(objective, omega, theta, y)
        theta, state = optimizer.step(theta, gradient, state)
        theta = objective.model.convexify(theta)
    return theta, state


def _source(
    objective: TransportObjective, omega: Tensor, theta: Tensor, x: Tensor
) -> tuple[Tensor, Callable[[], Tensor]]:
    """Return the gradient in omega of the terms in P, and a function for that in theta."""
    model, point = objective.model, objective.model.at(omega, x)
    if objective.cycle == "fwd" or not objective.lambda_cycle:
        return point.value_gradient(1 / len(x)), lambda: torch.zeros_like(theta)
    back = model.at(theta, point.push())
    cycle = back.along((2 * objective.lambda_cycle / len(x)) * (back.push() - x))
    return point.along(cycle.curvature()).gradient(1 / len(x)), cycle.gradient


def _target(
    objective: TransportObjective, omega: Tensor, back: PotentialValues
) -> tuple[Tensor, Callable[[], Tensor]]:
    """Return the gradient in omega of the terms in Q, and a function for that in theta."""
    y = back.x
    point = objective.model.at(omega, back.push())
    printed = objective.theta_objective == "printed"
    cycle = None
    if objective.lambda_cycle:
        cycle = point.along((2 * objective.lambda_cycle / len(y)) * (point.push() - y))

    def of_theta() -> Tensor:
        direction = torch.zeros_like(y) if cycle is None else cycle.curvature()
        if printed:
            direction = direction - (point.push() - y) / len(y)
        return back.along(direction).gradient()

    if cycle is None:
        return point.value_gradient(-1 / len(y)), of_theta
    return cycle.gradient(-1 / len(y)), of_theta


def identity_potential(
    model: DenseICNN,
    generator: np.random.Generator,
    dtype: torch.dtype,
    *,
    lr: float = 1e-3,
    tolerance: float = 1e-3,
    iterations: int = 5000,
    batch_size: int = 1024,
) -> Tensor:
    """Return parameters for which the gradient of f is close to the identity."""
    optimizer = FlatAdam(lr)
    parameters = torch.from_numpy(model.init(generator)).to(dtype)
    state = optimizer.init(parameters)
    for _ in range(iterations):
        x = torch.from_numpy(generator.standard_normal((batch_size, model.dimension), np.float32))
        x = (SPREAD * x).to(dtype)
        point = model.at(parameters, x)
        error = point.push() - x
        if error.square().mean() < tolerance:
            break
        gradient = point.along(error * (2 / error.numel())).gradient()
        parameters, state = optimizer.step(parameters, gradient, state)
        parameters = model.convexify(parameters)
    return parameters


def l2_uvp(mapped: Tensor, benchmark: Benchmark, x: Tensor) -> float:
    """Return the unexplained variance in per cent: 100 E ||m(X) - m*(X)||^2 / Var(Q)."""
    error = (mapped.double() - benchmark.true_map(x.double())).square().sum(1).mean()
    return 100 * float(error) / benchmark.target_variance


def linear_maps(benchmark: Benchmark, x: Tensor) -> dict[str, float]:
    """Return the L2-UVP of two affine maps: that which is optimal between Gaussians with the means
    and covariances of P and Q, and the one nearest to the optimal map on samples x of P.
    """
    x, centres, roots = x.double(), benchmark.source.centres, benchmark.source.roots
    covariance = (roots @ roots.mT).mean(0) + centres.T.cov(correction=0).view(x.shape[1], -1)
    gaussians = gaussian_benchmark(
        centres.mean(0).numpy(),
        covariance.numpy(),
        benchmark.target_mean,
        benchmark.target_covariance,
    )
    extended = torch.cat([x, torch.ones_like(x[:, :1])], 1)
    coefficients = torch.linalg.lstsq(extended, benchmark.true_map(x).double()).solution
    maps = {"Gaussian": gaussians.true_map(x), "best affine": extended @ coefficients}
    return {name: l2_uvp(mapped, benchmark, x) for name, mapped in maps.items()}


def cosine(mapped: Tensor, benchmark: Benchmark, x: Tensor) -> float:
    """Return the cosine of m - id and m* - id in L2(P), estimated from samples."""
    x = x.double()
    moved, best = mapped.double() - x, benchmark.true_map(x) - x
    lengths = float(moved.square().sum().sqrt() * best.square().sum().sqrt())
    return float((moved * best).sum()) / lengths if lengths > 0 else 0.0
