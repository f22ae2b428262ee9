"""Poisson counts with a random effect, maximum a posteriori.

Z given h is Poisson with mean exp(theta + h), exp(h) is Gamma(a, rate b), and the prior of theta is
proportional to exp(-lambda exp(theta)); Dieuleveut et al. 2025, section 2.3 and appendix C.1. The
integral over h has a closed form: Z is negative binomial and, by the Jensen surrogate,

    E[exp(h) | Z, tau] = (a + Z) / (b + exp(tau)).

Equations 6 and 43 of the paper drop the factor exp(Z h) from the likelihood; ``posterior:
as_printed`` does so too, which gives a / (b + exp(tau)) and another loss.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Gt
from torch import Tensor

from mpifed.errors import InputError
from mpifed.surrogate import Description, Surrogate, client_means

# S is open; projections stop here.
FLOOR = 1e-12


@dataclass(frozen=True)
class PoissonSurrogate(Surrogate):
    """Poisson counts in MM form; theta is a scalar and s = (E Z, -E exp(h))."""

    penalty_rate: float
    shape: float
    rate: float
    mean: float | None
    counts_in_posterior: bool
    measured: bool = False

    n_parameters: int = 1

    @property
    def size(self) -> int:  # type: ignore[override]
        """The length of s: 1 where the mean is known, otherwise 2."""
        return 2 if self.mean is None else 1

    def init(self, generator: np.random.Generator) -> np.ndarray:
        """Return a standard normal theta; with a known mean, T of minus a log-normal s."""
        drawn = generator.standard_normal(1)
        return (
            drawn if self.mean is None else np.log(self.mean / (self.penalty_rate + np.exp(drawn)))
        )

    def statistics(self, z: Tensor, theta: Tensor, offsets: np.ndarray) -> Tensor:
        """Return each client's mean of S̄; see ``Surrogate.statistics``."""
        return client_means(self._mean_statistic, z, theta, offsets)

    def _mean_statistic(self, z: Tensor, theta: Tensor) -> Tensor:
        counts = z.mean(0)
        seen = counts if self.counts_in_posterior else torch.zeros_like(counts)
        effect = (self.shape + seen) / (self.rate + torch.exp(theta))
        return -effect if self.mean is not None else torch.cat([counts, -effect])

    def minimiser(self, s: Tensor) -> Tensor:
        """Return ln(s1 / (lambda - s2)), with the known mean for s1 if there is one."""
        counts = s[..., :1] if self.mean is None else self.mean
        return torch.log(counts / (self.penalty_rate - s[..., -1:]))

    def project(self, s: Tensor) -> Tensor:
        """Return the projection on S: s1 positive, s2 negative."""
        effect = s[..., -1:].clamp(max=-FLOOR)
        if self.mean is not None:
            return effect
        return torch.cat([s[..., :1].clamp(min=FLOOR), effect], -1)

    def project_parameters(self, theta: Tensor) -> Tensor:
        """Return theta, with a known mean at most ln(mean / lambda), the end of T(S)."""
        if self.mean is None:
            return theta
        return theta.clamp(max=math.log(self.mean / (self.penalty_rate + FLOOR)))

    def losses(self, z: Tensor, theta: Tensor) -> Tensor:
        """Return -log p(Z | theta); with ``as_printed`` without exp(Z h) and log Z!."""
        z, y = z.double()[:, 0], torch.exp(theta)
        common = -z * theta - self.shape * math.log(self.rate)
        if not self.counts_in_posterior:
            return common + self.shape * torch.log(self.rate + y)
        total = self.shape + z
        chances = math.lgamma(self.shape) - torch.lgamma(total) + torch.lgamma(z + 1)
        return common + chances + total * torch.log(self.rate + y)

    def penalty(self, theta: Tensor) -> float:
        """Return lambda exp(theta)."""
        return self.penalty_rate * float(torch.exp(theta))

    def surrogate_of(self, theta: Tensor) -> Tensor:
        """Return an s with T(s) = theta."""
        if self.mean is None:
            return torch.cat([torch.exp(theta) * (self.penalty_rate + 1), -torch.ones_like(theta)])
        s = self.penalty_rate - self.mean * torch.exp(-theta)
        if not float(s) < 0:
            raise InputError(
                f"theta is {float(theta):g}; with the known mean {self.mean:g} it must be below "
                f"{math.log(self.mean / self.penalty_rate):g}"
            )
        return s

    def parts(self, theta: Tensor) -> dict[str, Tensor]:
        """Return the scalars ``theta`` and ``intensity`` = exp(theta)."""
        return {"theta": theta[0], "intensity": torch.exp(theta[0])}

    @property
    def fact_blocks(self) -> tuple[int, ...]:
        """One number, E Z, if it is to be measured."""
        return (1,) if self.measured else ()

    @property
    def waits(self) -> bool:
        """Whether the mean is to be measured."""
        return self.measured

    def facts(self, z: Tensor, block: int) -> Tensor:
        """Return the mean of one client's counts, (1,)."""
        return z.double().mean(0)

    def conclude(self, means: Tensor) -> Tensor:
        """Return the mean of all clients' counts, (1,)."""
        return means

    def knowing(self, facts: Tensor) -> PoissonSurrogate:
        """Return the surrogate with the measured mean."""
        if not self.measured:
            return self
        mean = float(facts[0])
        if not mean > 0:
            raise InputError(
                f"algorithm.surrogate.mean is 'measured', but the mean of all counts is {mean:g}; "
                "it must be above 0"
            )
        return replace(self, mean=mean)

    def remarks(self) -> list[str]:
        """Return a line for the log with the measured mean."""
        return [f"the mean of all counts is {self.mean:.17g}"] if self.measured else []


def poisson(
    data: Description,
    *,
    penalty_rate: Annotated[float, Gt(0)] = 0.5,
    shape: Annotated[float, Gt(0)] = 2.0,
    rate: Annotated[float, Gt(0)] = 3.0,
    mean: Annotated[float, Gt(0)] | Literal["measured"] | None = None,
    posterior: Literal["exact", "as_printed"] = "exact",
) -> PoissonSurrogate:
    """Poisson counts with a Gamma random effect.

    Parameters
    ----------
    data : Description
        What the samples are.
    penalty_rate : float
        The lambda of the penalty on theta.
    shape : float
        Shape of the Gamma distribution of exp(h).
    rate : float
        Rate of that distribution.
    mean : float or 'measured', optional
        E Z over all clients, a number or measured before the first round. None has E Z in s.
    posterior : {'exact', 'as_printed'}
        Posterior of h: the exact one, or that of equations 6 and 43, which drop exp(Z h).
    """
    if math.prod(data.input_shape) != 1:
        raise InputError(
            "algorithm.surrogate.name is 'poisson', which needs one count a sample; data has shape "
            f"{data.input_shape}"
        )
    measured = mean == "measured"
    fixed_mean = math.nan if mean == "measured" else mean
    return PoissonSurrogate(penalty_rate, shape, rate, fixed_mean, posterior == "exact", measured)
