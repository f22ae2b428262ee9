"""The dictionary with atoms of norm at most 1, from its statistics.

min over theta (p, K) of 1/2 tr(theta s1 thetaᵀ) - <theta, s2> subject to ||theta_k|| <= 1 has K
multipliers nu >= 0 and the solution theta(nu) = s2 (s1 + diag(nu))^-1. The multipliers minimise

    phi(nu) = 1/2 tr(s2 (s1 + diag(nu))^-1 s2ᵀ) + 1/2 sum nu,

smooth and convex in K unknowns (Lee, Battle, Raina and Ng 2007, section 4), with gradient
(1 - ||theta_k||^2) / 2 and Hessian A o thetaᵀ theta, A = (s1 + diag(nu))^-1. They are found by
projected Newton steps (Bertsekas 1982), which converge quadratically.

Where s1 is singular the solution need not be unique. Its diagonal is then damped, and proximal
steps from theta = 0 remove the effect of the damping, so that T is a function of s alone.
"""

from __future__ import annotations

from dataclasses import dataclass

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

CERTIFIED, ACCEPTED = 1e-13, 1e-6
"""Residuals of the optimality conditions, relative to the data: what is aimed at, and above which a
solution is refused.
"""

MOST_STEPS, MOST_PROXIMAL, MOST_HALVINGS, SWEEPS = 100, 20, 40, 30


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
    largest column of s2 or entry of s1 in all but extreme cases.

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
        If s1 is not positive semidefinite, s is not finite, or the residual stays above 1e-6.

    Examples
    --------
    >>> unit_ball_atoms(torch.eye(2).double(), torch.tensor([[3.0, 0.0], [0.0, 0.5]]).double())
    tensor([[1.0000, 0.0000],
            [0.0000, 0.5000]], dtype=torch.float64)
    """
    s1, s2 = (first + first.T) / 2, second.T.contiguous()
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
        atoms = found.atoms / found.squares.sqrt().clamp(min=1)[:, None]
        residual = _residual(s1, s2, lengths, atoms, multipliers)
        if residual < least:
            best, least = atoms, residual
        if least <= CERTIFIED or residual > 0.5 * before:
            break
        before = residual
    if not least <= ACCEPTED:
        raise RunError(
            "the atoms in unit balls that belong to a statistic were not found: its numbers differ "
            "too much in size, or the training diverged"
        )
    if least > CERTIFIED:
        best = _swept(s1, s2, best, floor)
    return best.T.contiguous()


def _swept(s1: Tensor, s2: Tensor, atoms: Tensor, floor: float) -> Tensor:
    """Return ``atoms`` after exact minimisation over each in turn (Mairal et al. 2010, Alg. 2).

    This removes the rounding errors that a nearly singular s1 left in Newton's last steps. Atoms
    with a weight in s1 of at most ``floor`` are left as they are.
    """
    atoms = atoms.clone()
    for _ in range(SWEEPS):
        before = atoms.clone()
        for k, weight in enumerate(s1.diagonal().tolist()):
            if weight > floor:
                moved = atoms[k] + (s2[k] - s1[k] @ atoms) / weight
                atoms[k] = moved / torch.linalg.vector_norm(moved).clamp(min=1)
        if float((atoms - before).abs().max()) <= EXACT:
            break
    return atoms


def _residual(s1: Tensor, s2: Tensor, lengths: Tensor, atoms: Tensor, multipliers: Tensor) -> float:
    """Return the residual of the optimality conditions, relative to the data."""
    slope = torch.linalg.vector_norm(s1 @ atoms - s2 + multipliers[:, None] * atoms, dim=1)
    scale = float(lengths.max() + s1.diagonal().max() * atoms.abs().max())
    return float(slope.max()) / scale if scale else 0.0


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
