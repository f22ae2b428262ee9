"""The example of Dieuleveut et al. 2025, Remark 1, in which mixing parameters fails.

l(Z, theta) = Z theta + 1 / theta on theta > 0, with E Z > 0. Its surrogate is exact: S̄ = Z,
phi = -theta, psi = 1 / theta, S the positive numbers, T(s) = s^(-1/2). Mixing the clients' means
and then applying T gives the minimiser (sum mu_i E_i Z)^(-1/2) in one round; mixing the clients'
T(E_i Z) gives something larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import InputError
from mpifed.surrogate import Description, Surrogate, client_means

# S and Theta are open; projections stop here.
FLOOR = 1e-12


@dataclass(frozen=True)
class RemarkOne(Surrogate):
    """The example in MM form, with one parameter and one statistic."""

    size: int = 1
    n_parameters: int = 1

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Return a log-normal theta."""
        return np.exp(generator.standard_normal(1))

    def statistics(self, z: Tensor, theta: Tensor, offsets: np.ndarray) -> Tensor:
        """Return each client's mean of Z; see ``Surrogate.statistics``."""
        return client_means(lambda samples, _: samples.mean(0), z, theta, offsets)

    def minimiser(self, s: Tensor) -> Tensor:
        """Return s^(-1/2)."""
        return 1 / torch.sqrt(s)

    def project(self, s: Tensor) -> Tensor:
        """Return s, at least ``FLOOR``."""
        return s.clamp(min=FLOOR)

    def project_parameters(self, theta: Tensor) -> Tensor:
        """Return theta, at least ``FLOOR``."""
        return theta.clamp(min=FLOOR)

    def losses(self, z: Tensor, theta: Tensor) -> Tensor:
        """Return Z theta + 1 / theta of each sample, (samples,)."""
        return z.double()[:, 0] * theta + 1 / theta

    def penalty(self, theta: Tensor) -> float:
        """Return the indicator of theta > 0."""
        return 0.0 if float(theta) > 0 else math.inf

    def surrogate_of(self, theta: Tensor) -> Tensor:
        """Return theta^(-2)."""
        return 1 / theta**2

    def parts(self, theta: Tensor) -> dict[str, Tensor]:
        """Return ``theta``, a scalar."""
        return {"theta": theta[0]}


def remark_one(data: Description) -> RemarkOne:
    """One-dimensional example in which mixing parameters misses the minimiser.

    Parameters
    ----------
    data : Description
        The data, with one number per sample.
    """
    if math.prod(data.input_shape) != 1:
        raise InputError(f"remark_one needs one number a sample; data has {data.input_shape}")
    return RemarkOne()
