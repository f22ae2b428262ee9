"""Dictionary learning and matrix factorisation by the variational surrogate.

Dieuleveut et al. 2025, Example 3 and equation 28: min over theta (p, K) of the mean of
min over h of 1/2 ||Z - theta h||^2 + chi(h), plus g(theta). The surrogate is
S̄ = (h hᵀ, Z hᵀ) at the minimising h, phi = (-1/2 thetaᵀ theta, theta), psi = 0, S the positive
semidefinite matrices times R^(p x K). With g = eta ||theta||^2, T(s) = s2 (s1 + 2 eta I)^-1.

Equations 14 to 17 of the paper have ||Z - theta h||^2 without the half, hence phi twice as large
and T(s) = s2 (s1 + eta I)^-1; that is ``objective: as_printed``. The paper's strict
||theta_k|| < 1 is <= 1 here, since the strict set has no minimiser.

``unit_ball_atoms`` is T for atoms of norm at most 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import Tensor

import mpifed.surrogates.lasso as lasso
from mpifed.errors import RunError
from mpifed.surrogate import (
    Description,
    Surrogate,
    cholesky,
    columns_in_unit_ball,
    each_row,
    padded,
    positive_semidefinite,
)

# What is added to the diagonal of s1, as a multiple of it and of its sum.
DAMPING, FLOOR = 1e-10, 1e-13

# How near to 1 the norms of atoms on the sphere are brought.
EXACT = 1e-14

# How far a value of phi may be off, relative to it.
ROUNDING = 1e-15

# The residual of the optimality conditions that Newton's method must reach; see ``_residual``.
CERTIFIED = 1e-13

# How far a value may be above the minimum, relative to the lengths of the columns of s2.
ACCEPTED = 1e-6

MOST_STEPS, MOST_PROXIMAL, MOST_HALVINGS = 100, 20, 40

# The central path: its last mu, as a multiple of the norm of s2; the factor from one mu to the
# next; and the relative length of a Newton step below which a point counts as on the path.
PATH_END, SHORTER, NEAR_PATH = 1e-15, 0.1, 0.1


@dataclass(frozen=True)
class Trial:
    """Multipliers with the dictionary and the value of phi that they give."""

    multipliers: Tensor
    factor: Tensor
    atoms: Tensor
    squares: Tensor
    value: float


def unit_ball_atoms(first: Tensor, second: Tensor) -> Tensor:
    """Return argmin of 1/2 tr(theta s1 thetaᵀ) - <theta, s2> with atoms of norm at most 1."""
    s1, s2 = _near_one((first + first.T) / 2, second.T.contiguous())
    weight, lengths = s1.diagonal(), torch.linalg.vector_norm(s2, dim=1)
    floor = FLOOR * float(weight.sum()) + torch.finfo(s1.dtype).tiny
    damping = DAMPING * weight.clamp(min=0) + floor
    damped, multipliers = s1 + damping.diag(), (lengths - weight).clamp(min=0)
    cholesky(damped)  # Multipliers may hide that s1 is not positive semidefinite.
    atoms = best = torch.zeros_like(s2)
    before = least = torch.inf
    for _ in range(MOST_PROXIMAL):
        trial = _newton(damped, s2 + damping[:, None] * atoms, multipliers)
        multipliers = trial.multipliers
        atoms = _cut(trial)
        residual = _residual(s1, s2, lengths, atoms, multipliers)
        if residual < least:
            best, least = atoms, residual
        if least <= CERTIFIED or residual > 0.5 * before:
            break
        before = residual
    if not least <= CERTIFIED:
        path = (_cut(trial) for trial in _central_path(s1, s2, damping))
        gap, best = min(((_gap(s1, s2, at), at) for at in (best, *path)), key=itemgetter(0))
        if not gap <= ACCEPTED * float(lengths.sum()):
            raise RunError(
                "the atoms in unit balls that belong to a statistic were not found: its numbers "
                "differ too much in size, or the training diverged"
            )
    return best.T.contiguous()


def _near_one(s1: Tensor, s2: Tensor) -> tuple[Tensor, Tensor]:
    """Return both divided by a number that does not change T, so that no square overflows."""
    largest = float(torch.maximum(s1.abs().max(), s2.abs().max()))
    if not largest or not math.isfinite(largest):
        return s1, s2
    half = math.frexp(largest)[1] // 2
    # In two steps, as 4^half itself may not be a number.
    return s1 * 2.0**-half * 2.0**-half, s2 * 2.0**-half * 2.0**-half


def _cut(trial: Trial) -> Tensor:
    """Return the atoms of a trial, those of norm above 1 scaled to 1."""
    return trial.atoms / trial.squares.sqrt().clamp(min=1)[:, None]


def _central_path(s1: Tensor, s2: Tensor, damping: Tensor) -> Iterator[Trial]:
    """Yield points at which nu_k (1 - ||theta_k||^2) = 2 mu for all k, for smaller and smaller mu.
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
    longer steps at first than Newton on phi and is tried before it.
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
    target = torch.where(free, wish * size, 0.0)
    return torch.cholesky_solve(target[:, None], factor)[:, 0] * size


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


Codes = Literal["lasso", "ridge", "nonnegative"]
Start = Literal["normal", "unit", "statistics"]


@dataclass(frozen=True)
class DictionarySurrogate(Surrogate):
    """Dictionary learning; theta (p, K) and s = (s1 (K, K), s2 (p, K)), flat, row by row."""

    dimension: int
    n_atoms: int
    codes: Codes
    code_penalty: float
    ridge: float | None
    factor: float
    tolerance: float
    start: Start = "normal"

    @property
    def size(self) -> int:  # type: ignore[override]
        """The length of s, K (K + p)."""
        return self.n_atoms * (self.n_atoms + self.dimension)

    @property
    def n_parameters(self) -> int:  # type: ignore[override]
        """The length of theta, p K."""
        return self.dimension * self.n_atoms

    @property
    def starts_from_data(self) -> bool:  # type: ignore[override]
        """Whether ``start`` is ``statistics``."""
        return self.start == "statistics"

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Return standard normal atoms, but for ``start: normal`` with a ridge scaled to norm 1."""
        theta = generator.standard_normal((self.dimension, self.n_atoms))
        if self.ridge is None or self.start != "normal":
            theta /= np.linalg.norm(theta, axis=0)
        return theta.ravel()

    def code(self, z: Tensor, dictionary: Tensor) -> Tensor:
        """Return M(z, theta), the minimising h of each sample."""
        penalty = self.code_penalty / self.factor
        if self.codes == "ridge":
            gram = dictionary.T @ dictionary
            gram.diagonal().add_(penalty)
            inverse = torch.cholesky_inverse(cholesky(gram))
            return (padded(z) @ (dictionary @ inverse))[: len(z)]
        return lasso.codes(
            dictionary, z, penalty, self.tolerance, nonnegative=self.codes == "nonnegative"
        )

    def statistics(self, z: Tensor, theta: Tensor, offsets: np.ndarray) -> Tensor:
        """Return each client's mean of (h hᵀ, Z hᵀ); see ``Surrogate.statistics``."""
        z, sizes = z.double(), np.diff(offsets).tolist()
        parts = z.split(sizes)
        if theta.dim() == 1:
            coded = self.code(z, self._matrix(theta)).split(sizes)
        else:
            coded = tuple(
                self.code(samples, self._matrix(row))
                for samples, row in zip(parts, theta, strict=True)
            )
        means, square = z.new_empty(len(sizes), self.size), self.n_atoms**2
        first = means[:, :square].unflatten(1, (self.n_atoms, self.n_atoms))
        second = means[:, square:].unflatten(1, (self.dimension, self.n_atoms))
        for samples, h, row, s1, s2 in zip(parts, coded, means, first, second, strict=True):
            torch.mm(h.T, h, out=s1)
            torch.mm(samples.T, h, out=s2)
            row.div_(len(h))
        return means

    def minimiser(self, s: Tensor) -> Tensor:
        """Return T(s), row by row; raise ``RunError`` for an s outside S."""
        return each_row(self._minimiser, s)

    def _minimiser(self, s: Tensor) -> Tensor:
        first, second = self._blocks(s)
        if self.ridge is None:
            return unit_ball_atoms(first, second).flatten()
        system = (first + first.T) / 2
        system.diagonal().add_(2 * self.ridge / self.factor)
        return torch.cholesky_solve(second.T, cholesky(system)).T.flatten()

    def project(self, s: Tensor) -> Tensor:
        """Return the projection on S: s1 becomes positive semidefinite."""
        return each_row(self._project, s)

    def _project(self, s: Tensor) -> Tensor:
        first, second = self._blocks(s)
        return torch.cat([positive_semidefinite(first).flatten(), second.flatten()])

    def project_parameters(self, theta: Tensor) -> Tensor:
        """Return theta with atoms scaled into the unit ball, where they must lie in it."""
        return theta if self.ridge is not None else each_row(self._project_atoms, theta)

    def _project_atoms(self, theta: Tensor) -> Tensor:
        return columns_in_unit_ball(self._matrix(theta)).flatten()

    def losses(self, z: Tensor, theta: Tensor) -> Tensor:
        """Return min over h of factor / 2 ||z - theta h||^2 + chi(h) of each sample, (samples,)."""
        rows, dictionary = padded(z.double()), self._matrix(theta)
        h = self.code(rows, dictionary)
        residual = rows - h @ dictionary.T
        charge = 0.5 * h * h if self.codes == "ridge" else h.abs()
        loss = 0.5 * self.factor * (residual * residual).sum(1) + self.code_penalty * charge.sum(1)
        return loss[: len(z)]

    def penalty(self, theta: Tensor) -> float:
        """Return eta ||theta||^2, or the indicator of the unit balls (up to rounding)."""
        if self.ridge is not None:
            return self.ridge * float(theta @ theta)
        norms = torch.linalg.vector_norm(self._matrix(theta), dim=0)
        return 0.0 if float(norms.max()) <= 1 + 1e-12 else math.inf

    def surrogate_of(self, theta: Tensor) -> Tensor:
        """Return (I, (1 + 2 eta) theta), or (I, theta) for atoms in the unit ball."""
        identity = torch.eye(self.n_atoms, dtype=theta.dtype).flatten()
        scale = 1.0 if self.ridge is None else 1 + 2 * self.ridge / self.factor
        return torch.cat([identity, scale * theta])

    def parts(self, theta: Tensor) -> dict[str, Tensor]:
        """Return ``dictionary`` (p, K), with atoms as columns."""
        return {"dictionary": self._matrix(theta)}

    def _matrix(self, theta: Tensor) -> Tensor:
        return theta.double().view(self.dimension, self.n_atoms)

    def _blocks(self, s: Tensor) -> tuple[Tensor, Tensor]:
        square = self.n_atoms**2
        first = s[:square].view(self.n_atoms, self.n_atoms)
        return first, s[square:].view(self.dimension, self.n_atoms)


def dictionary(
    data: Description,
    *,
    n_atoms: Annotated[int, Ge(1)] = 15,
    codes: Codes = "lasso",
    code_penalty: Annotated[float, Gt(0)] = 0.1,
    atoms: Literal["ridge", "unit_ball"] = "ridge",
    atom_penalty: Annotated[float, Gt(0)] = 0.2,
    objective: Literal["half", "as_printed"] = "half",
    tolerance: Annotated[float, Gt(0)] = 1e-8,
    start: Start = "normal",
) -> DictionarySurrogate:
    """Dictionary learning; ridge or nonnegative codes make it matrix factorisation.

    Parameters
    ----------
    data : Description
        What the samples are.
    n_atoms : int
        Number K of columns of theta.
    codes : {'lasso', 'ridge', 'nonnegative'}
        Penalty of a code h: lambda ||h||_1, lambda / 2 ||h||^2, or lambda ||h||_1 with h >= 0.
    code_penalty : float
        The lambda of ``codes``.
    atoms : {'ridge', 'unit_ball'}
        Whether atoms have a penalty eta ||theta||^2, or lie in the unit ball.
    atom_penalty : float
        The eta of ``atoms: ridge``.
    objective : {'half', 'as_printed'}
        Factor of ||z - theta h||^2: 1 / 2 as in equation 28, or 1 as in equations 14 to 17.
    tolerance : float
        Accuracy of the codes.
    start : {'normal', 'unit', 'statistics'}
        theta_0: atoms from N(0, I), or these scaled to norm 1, which ``atoms: unit_ball`` always
        has. S_0 is (I, (1 + 2 eta) theta_0), of which T is theta_0; for ``statistics``, it is the
        mean of the statistics of all training data under atoms of norm 1.
    """
    return DictionarySurrogate(
        math.prod(data.input_shape),
        n_atoms,
        codes,
        code_penalty,
        atom_penalty if atoms == "ridge" else None,
        2.0 if objective == "as_printed" else 1.0,
        tolerance,
        start,
    )
