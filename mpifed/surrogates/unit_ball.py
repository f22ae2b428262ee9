"""The dictionary with atoms of norm at most 1, from its statistics.

min over theta (p, K) of 1/2 tr(theta s1 thetaᵀ) - <theta, s2> subject to ||theta_k|| <= 1 has K
multipliers nu >= 0 and the solution theta(nu) = s2 (s1 + diag(nu))^-1. The multipliers minimise

    phi(nu) = 1/2 tr(s2 (s1 + diag(nu))^-1 s2ᵀ) + 1/2 sum nu,

smooth and convex in K unknowns (Lee, Battle, Raina and Ng 2007, section 4), with gradient
(1 - ||theta_k||^2) / 2 and Hessian A o thetaᵀ theta, A = (s1 + diag(nu))^-1. They are found by
projected Newton steps (Bertsekas 1982), which converge quadratically.

Where s1 is singular the solution need not be unique. Its diagonal is then damped, and proximal
steps from theta = 0 remove the effect of the damping, so that T is a function of s alone. Where
rounding errors prevent this, the best point of the central path is taken.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor

from mpifed.errors import RunError
from mpifed.surrogates.projections import cholesky

DAMPING, FLOOR = 1e-10, 1e-13
"""What is added to the diagonal of s1, as a multiple of it and of its sum."""

EXACT = 1e-14
"""How near to 1 the norms of atoms on the sphere are brought."""

ROUNDING = 1e-15
"""How far a value of phi may be off, relative to it."""

CERTIFIED = 1e-13
"""The residual of the optimality conditions that Newton's method must reach; see ``_residual``."""

ACCEPTED = 1e-6
"""How far a value may be above the minimum, relative to the lengths of the columns of s2."""

MOST_STEPS, MOST_PROXIMAL, MOST_HALVINGS = 100, 20, 40

PATH_END, SHORTER, NEAR_PATH = 1e-15, 0.1, 0.1
"""The central path: its last mu, as a multiple of the norm of s2; the factor from one mu to the
next; and the relative length of a Newton step below which a point counts as on the path.
"""


@dataclass(frozen=True)
class Trial:
    """Multipliers with the dictionary and the value of phi that they give.

    Attributes
    ----------
    multipliers : Tensor, shape (K,)
        nu.
    factor : Tensor, shape (K, K)
        The Cholesky factor of s1 + diag(nu).
    atoms : Tensor, shape (K, p)
        The atoms as rows.
    squares : Tensor, shape (K,)
        Their squared norms.
    value : float
        phi(nu).
    """

    multipliers: Tensor
    factor: Tensor
    atoms: Tensor
    squares: Tensor
    value: float


def unit_ball_atoms(first: Tensor, second: Tensor) -> Tensor:
    """Return argmin of 1/2 tr(theta s1 thetaᵀ) - <theta, s2> with atoms of norm at most 1.

    The result is exact to rounding: the residual of the optimality conditions is below 1e-13 of the
    terms of s1 theta - s2, or, where a singular s1 prevents this, the value is above the minimum by
    about 1e-13 of the lengths of the columns of s2 in all but extreme cases.

    Parameters
    ----------
    first : Tensor, shape (K, K)
        S1.
    second : Tensor, shape (p, K)
        S2.

    Returns
    -------
    Tensor, shape (p, K)
        The atoms as columns.

    Raises
    ------
    RunError
        If s1 is not positive semidefinite, s is not finite, or the value may be above the minimum
        by more than 1e-6 of the lengths of the columns of s2.

    Examples
    --------
    >>> unit_ball_atoms(torch.eye(2).double(), torch.tensor([[3.0, 0.0], [0.0, 0.5]]).double())
    tensor([[1.0000, 0.0000],
            [0.0000, 0.5000]], dtype=torch.float64)
    """
    s1, s2 = _near_one((first + first.T) / 2, second.T.contiguous())
    weight, lengths = s1.diagonal(), torch.linalg.vector_norm(s2, dim=1)
    floor = FLOOR * float(weight.sum()) + torch.finfo(s1.dtype).tiny
    damping = DAMPING * weight.clamp(min=0) + floor
    damped, multipliers = s1 + damping.diag(), (lengths - weight).clamp(min=0)
    cholesky(damped)  # Multipliers may hide that s1 is not positive semidefinite.
    atoms = best = torch.zeros_like(s2)
    before = least = torch.inf
    for _ in range(MOST_PROXIMAL):
        found = _newton(damped, s2 + damping[:, None] * atoms, multipliers)
        multipliers = found.multipliers
        atoms = _cut(found)
        residual = _residual(s1, s2, lengths, atoms, multipliers)
        if residual < least:
            best, least = atoms, residual
        if least <= CERTIFIED or residual > 0.5 * before:
            break
        before = residual
    if not least <= CERTIFIED:
        path = (_cut(found) for found in _central_path(s1, s2, damping))
        gap, best = min(((_gap(s1, s2, at), at) for at in (best, *path)), key=itemgetter(0))
        if not gap <= ACCEPTED * float(lengths.sum()):
            raise RunError(
                "the atoms in unit balls that belong to a statistic were not found: its numbers "
                "differ too much in size, or the training diverged"
            )
    return best.T.contiguous()


def _near_one(s1: Tensor, s2: Tensor) -> tuple[Tensor, Tensor]:
    """Return both divided by a number that does not change T, so that no square overflows.

    It is a power of 4, by which division and square roots stay the same to the bit.
    """
    largest = float(torch.maximum(s1.abs().max(), s2.abs().max()))
    if not largest or not math.isfinite(largest):
        return s1, s2
    half = math.frexp(largest)[1] // 2
    # In two steps, as 4^half itself may not be a number.
    return s1 * 2.0**-half * 2.0**-half, s2 * 2.0**-half * 2.0**-half


def _cut(found: Trial) -> Tensor:
    """Return the atoms of a trial, those of norm above 1 scaled to 1."""
    return found.atoms / found.squares.sqrt().clamp(min=1)[:, None]


def _central_path(s1: Tensor, s2: Tensor, damping: Tensor) -> Iterator[Trial]:
    """Yield points at which nu_k (1 - ||theta_k||^2) = 2 mu for all k, for smaller and smaller mu.

    They minimise phi(nu) - mu sum log nu and are sum nu_k (1 - ||theta_k||) above the minimum at
    most. Multipliers of s1 with a small damping are as small as the damping, and rounding errors of
    theta in directions that s1 does not see then carry atoms out of their balls; on the path these
    directions are used to stay inside, until mu itself is as small as rounding errors.

    As diag(nu) <= s1 + diag(nu), the third derivative along nu h is at most 3 max |h| times the
    second (Nesterov and Nemirovskii 1994), which gives the length of Newton's steps.
    """
    system = s1 + _least_damping(s1, damping).diag()
    everyone = torch.ones(len(s1), dtype=torch.bool)
    mu = float(torch.linalg.matrix_norm(s2))
    last, multipliers = PATH_END * mu, torch.full_like(damping, 2 * mu)
    while mu > last:
        for _ in range(MOST_STEPS):
            now = _trial(system, s2, multipliers)
            hessian = torch.cholesky_inverse(now.factor) * (now.atoms @ now.atoms.T)
            hessian.diagonal().add_(mu / multipliers**2)
            wish = mu / multipliers - 0.5 * (1 - now.squares)
            step = _newton_direction(hessian, wish, everyone) / multipliers
            longest = float(step.abs().max())
            if longest <= NEAR_PATH:
                break
            multipliers = multipliers * (1 + step * (1 - (1 + 2 * longest) ** -0.5) / longest)
        multipliers = multipliers * (1 + step.clamp(-NEAR_PATH, NEAR_PATH))
        yield _trial(system, s2, multipliers)
        # The path is nearly straight in the logarithms of nu and mu.
        tangent = _newton_direction(hessian, mu / multipliers, everyone) / multipliers
        multipliers = multipliers * SHORTER ** tangent.clamp(0, 1)
        mu *= SHORTER


def _least_damping(s1: Tensor, damping: Tensor) -> Tensor:
    """Return the least of 1e-4, 1e-3, ..., 1 times ``damping`` that makes s1 positive definite."""
    for power in range(4, 0, -1):
        tried = damping * 10.0**-power
        # Half of it must do, so that rounding cannot fail with the rest.
        if not int(torch.linalg.cholesky_ex(s1 + (0.5 * tried).diag()).info):
            return tried
    return damping


def _gap(s1: Tensor, s2: Tensor, atoms: Tensor) -> float:
    """Return how far the value of ``atoms`` may be above the minimum (Frank and Wolfe 1956)."""
    slope = s1 @ atoms - s2
    return float((slope * atoms).sum() + torch.linalg.vector_norm(slope, dim=1).sum())


def _residual(s1: Tensor, s2: Tensor, lengths: Tensor, atoms: Tensor, multipliers: Tensor) -> float:
    """Return the residual of the optimality conditions, relative to the terms of s1 theta - s2."""
    slope = torch.linalg.vector_norm(s1 @ atoms - s2 + multipliers[:, None] * atoms, dim=1)
    slack = multipliers * (1 - torch.linalg.vector_norm(atoms, dim=1))
    scale = float((lengths + s1.abs() @ torch.linalg.vector_norm(atoms, dim=1)).max())
    return float(torch.maximum(slope, slack).max()) / scale if scale else 0.0


def _newton(s1: Tensor, s2: Tensor, multipliers: Tensor) -> Trial:
    """Return the minimiser of phi, for a positive definite s1 and s2 (K, p)."""
    now = _trial(s1, s2, multipliers)
    best, nearest, stalled = now, torch.inf, False
    for _ in range(MOST_STEPS):
        norms, slope = now.squares.sqrt(), 0.5 * (1 - now.squares)
        free = (now.multipliers > 0) | (slope < 0)
        off = float(torch.where(free, norms - 1, 0.0).abs().max())
        if off < nearest:
            best, nearest = now, off
        elif stalled:
            break
        if off <= EXACT:
            break
        moved = _step(s1, s2, now, norms, slope, free)
        if moved is None:
            break
        # From here on the differences of phi are but rounding.
        stalled = now.value - moved.value <= ROUNDING * abs(now.value)
        now = moved
    return best


def _step(
    s1: Tensor, s2: Tensor, now: Trial, norms: Tensor, slope: Tensor, free: Tensor
) -> Trial | None:
    """Return a step of the ``free`` multipliers that lowers phi; None where rounding prevents it.

    Newton on 1 / ||theta_k|| = 1, which is nearly linear in nu_k (Moré and Sorensen 1983), takes
    longer steps at first than Newton on phi and is tried before it. If both fail, multipliers that
    Newton on phi takes below 0 although phi rises with them are set to 0 separately.
    """
    hessian = torch.cholesky_inverse(now.factor) * (now.atoms @ now.atoms.T)
    direction = _newton_direction(hessian, now.squares * (norms - 1), free)
    moved = _along(s1, s2, now, slope, direction, 2)
    if moved is None:
        direction = _newton_direction(hessian, -slope, free)
        moved = _along(s1, s2, now, slope, direction, 4)
    if moved is None:
        leaving = (now.multipliers + direction < 0) & (slope > 0)
        direction = _newton_direction(hessian, -slope, free & ~leaving)
        direction = torch.where(leaving, -now.multipliers, direction)
        moved = _along(s1, s2, now, slope, direction, MOST_HALVINGS)
    return moved


def _newton_direction(hessian: Tensor, wish: Tensor, free: Tensor) -> Tensor:
    """Return hessian^-1 wish among the ``free`` multipliers, 0 elsewhere."""
    size = torch.where(free, hessian.diagonal(), 1.0).clamp(min=torch.finfo(wish.dtype).tiny)
    size = size.rsqrt()
    # Rows and columns of the others become those of the identity.
    scaled = torch.where(free[:, None] & free[None, :], hessian, 0.0) * size[:, None] * size
    scaled.diagonal().fill_(1 + 1e-14)
    factor, failed = torch.linalg.cholesky_ex(scaled)
    if int(failed):
        scaled.diagonal().add_(1e-10)
        factor = torch.linalg.cholesky_ex(scaled)[0]
    wanted = torch.where(free, wish * size, 0.0)
    return torch.cholesky_solve(wanted[:, None], factor)[:, 0] * size


def _along(
    s1: Tensor, s2: Tensor, now: Trial, slope: Tensor, direction: Tensor, halvings: int
) -> Trial | None:
    """Return the longest of the steps 1, 1/2, 1/4, ... that lowers phi enough (Armijo), if any."""
    for halving in range(halvings):
        multipliers = (now.multipliers + direction / 2**halving).clamp(min=0)
        descent = float(slope @ (multipliers - now.multipliers))
        if descent < 0:
            moved = _trial(s1, s2, multipliers)
            if moved.value <= now.value + 1e-4 * descent + ROUNDING * abs(now.value):
                return moved
    return None


def _trial(s1: Tensor, s2: Tensor, multipliers: Tensor) -> Trial:
    """Return the trial at some multipliers."""
    system = s1.clone()
    system.diagonal().add_(multipliers)
    factor = cholesky(system)
    atoms = torch.cholesky_solve(s2, factor)
    value = 0.5 * float((s2 * atoms).sum() + multipliers.sum())
    return Trial(multipliers, factor, atoms, (atoms * atoms).sum(1), value)
