"""Dictionary learning and matrix factorisation by the variational surrogate.

Dieuleveut et al. 2025, Example 3 and equation 28: min over theta (p, K) of the mean of
min over h of 1/2 ||Z - theta h||^2 + chi(h), plus g(theta). The surrogate is
S̄ = (h hᵀ, Z hᵀ) at the minimising h, phi = (-1/2 thetaᵀ theta, theta), psi = 0, S the positive
semidefinite matrices times R^(p x K). With g = eta ||theta||^2, T(s) = s2 (s1 + 2 eta I)^-1.

Equations 14 to 17 of the paper have ||Z - theta h||^2 without the half, hence phi twice as large
and T(s) = s2 (s1 + eta I)^-1; that is ``objective: as_printed``. The paper's strict
||theta_k|| < 1 is <= 1 here, since the strict set has no minimiser.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import Tensor

from mpifed.data.base import Description
from mpifed.surrogates import lasso
from mpifed.surrogates.base import Surrogate, each_row, padded
from mpifed.surrogates.projections import (
    cholesky,
    columns_in_unit_ball,
    positive_semidefinite,
)
from mpifed.surrogates.unit_ball import unit_ball_atoms

Codes = Literal["lasso", "ridge", "nonnegative"]


@dataclass(frozen=True)
class Dictionary(Surrogate):
    """Dictionary learning; theta (p, K) and s = (s1 (K, K), s2 (p, K)), flat, row by row.

    Attributes
    ----------
    dimension : int
        p, the length of a sample.
    n_atoms : int
        K.
    codes : Codes
        The penalty chi on the codes.
    code_penalty : float
        Its factor lambda.
    ridge : float | None
        eta; None for atoms in the unit ball.
    factor : float
        The factor of 1/2 ||Z - theta h||^2 in the loss: 1, or 2 as printed.
    tolerance : float
        The relative duality gap of lasso codes.
    """

    dimension: int
    n_atoms: int
    codes: Codes
    code_penalty: float
    ridge: float | None
    factor: float
    tolerance: float

    @property
    def size(self) -> int:
        """The length of s, K (K + p)."""
        return self.n_atoms * (self.n_atoms + self.dimension)

    @property
    def n_parameters(self) -> int:
        """The length of theta, p K."""
        return self.dimension * self.n_atoms

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Return standard normal atoms, scaled to norm 1 where they must lie in the unit ball."""
        theta = generator.standard_normal((self.dimension, self.n_atoms))
        if self.ridge is None:
            theta /= np.linalg.norm(theta, axis=0)
        return theta.ravel()

    def code(self, z: Tensor, dictionary: Tensor) -> Tensor:
        """Return M(z, theta), the minimising h of each sample.

        Parameters
        ----------
        z : Tensor of float64, shape (samples, p)
            The samples.
        dictionary : Tensor of float64, shape (p, K)
            The atoms as columns.

        Returns
        -------
        Tensor of float64, shape (samples, K)
            The codes.
        """
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
                self.code(own, self._matrix(row)) for own, row in zip(parts, theta, strict=True)
            )
        found, square = z.new_empty(len(sizes), self.size), self.n_atoms**2
        first = found[:, :square].unflatten(1, (self.n_atoms, self.n_atoms))
        second = found[:, square:].unflatten(1, (self.dimension, self.n_atoms))
        for own, h, row, s1, s2 in zip(parts, coded, found, first, second, strict=True):
            torch.mm(h.T, h, out=s1)
            torch.mm(own.T, h, out=s2)
            row.div_(len(h))
        return found

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

    def psi(self, theta: Tensor) -> Tensor:
        """Return 0."""
        return torch.zeros_like(theta[0])

    def phi(self, theta: Tensor) -> Tensor:
        """Return factor (-1/2 thetaᵀ theta, theta), flat."""
        matrix = self._matrix(theta)
        return self.factor * torch.cat([-0.5 * (matrix.T @ matrix).flatten(), theta])

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
) -> Dictionary:
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

    Returns
    -------
    Dictionary
        The surrogate.
    """
    return Dictionary(
        math.prod(data.input_shape),
        n_atoms,
        codes,
        code_penalty,
        atom_penalty if atoms == "ridge" else None,
        2.0 if objective == "as_printed" else 1.0,
        tolerance,
    )
