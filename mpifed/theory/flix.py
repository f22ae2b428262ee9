"""The theorems of FLIX (Gasanov et al. 2021) as functions of measured constants.

Notation of the paper: client i has coefficient alpha_i, smoothness L_i and strong convexity mu_i;
``hat`` marks a plain mean over clients, and L_alpha = mean alpha_i^2 L_i (Proposition 2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

LARGEST_LOGARITHM = 700.0
"""That of the largest numbers: what has grown by more is beyond any bound."""

Setting = Literal["strongly_convex", "convex", "nonconvex"]


@dataclass(frozen=True)
class Constants:
    """What step sizes are made of; see ``constants``."""

    n: int
    l_hat: float
    mu_hat: float
    l_alpha: float
    mu_alpha: float
    l_largest: float
    """max_i alpha_i^2 L_i, a smoothness that all f_i(T_i(x)) share."""
    m1: float
    """max_i alpha_i^2 L_i omega_i."""
    m2: float
    """max_i beta_i omega_i alpha_i^2 L_i."""
    rho: float
    """min_i beta_i."""
    omega: float

    @property
    def condition(self) -> float:
        """kappa = L_alpha / mu_alpha; infinite without strong convexity."""
        return self.l_alpha / self.mu_alpha if self.mu_alpha > 0 else math.inf


def constants(
    alpha: np.ndarray, smooth: np.ndarray, strong: float, omega: float = 0.0, beta: float = 1.0
) -> Constants:
    """The constants of all clients: ``alpha`` and ``smooth`` (L_i) are (n,), mu_i = ``strong``.

    ``omega`` is the variance of the compressor, ``beta`` the rate of DIANA's memories.
    """
    curved = alpha**2 * smooth
    return Constants(
        n=len(alpha),
        l_hat=float(smooth.mean()),
        mu_hat=strong,
        l_alpha=float(curved.mean()),
        mu_alpha=float((alpha**2).mean() * strong),
        l_largest=float(curved.max()),
        m1=float(curved.max() * omega),
        m2=float(curved.max() * beta * omega),
        rho=beta,
        omega=omega,
    )


def dgd_step(c: Constants) -> float:
    """Theorem 2: 1 / L_alpha."""
    return 1 / c.l_alpha


def error_feedback_step(c: Constants, contraction: float) -> float:
    """Stich and Karimireddy (2020), Theorem 9: 1 / (10 L (2 / delta)), without noise.

    ``contraction`` is delta, E ||C(v) - v||^2 <= (1 - delta) ||v||^2.
    """
    return contraction / (20 * c.l_alpha)


def dcgd_step(c: Constants, setting: Setting) -> float:
    """Theorems 3, 5 and 7; the last allows any step up to 1 / L_alpha."""
    if setting == "nonconvex":
        return 1 / c.l_alpha
    step = 1 / (c.l_alpha + 2 * c.m1 / c.n)
    return step if setting == "strongly_convex" else step / 4


def diana_step(
    c: Constants, setting: Setting, smoothness: Literal["paper", "safe"] = "paper"
) -> float:
    """Theorems 4, 6 and 8.

    For the last, ``smoothness: safe`` puts max_i alpha_i^2 L_i for L_alpha, since the proof needs a
    constant that all f_i(T_i(x)) share.
    """
    if setting == "nonconvex":
        eta = c.omega * (1 + c.omega) * (1 + 2 * (1 + c.omega)) / c.n
        bound = 2 / (1 + math.sqrt(1 + 8 * eta))
        if eta > 0:
            bound = min(1 / (2 * math.sqrt(eta)), bound)
        return bound / (c.l_alpha if smoothness == "paper" else c.l_largest)
    step = 1 / (c.l_alpha + 2 * c.m1 / c.n + 4 * c.m2 / (c.n * c.rho))
    return step if setting == "strongly_convex" else step / 4


def dcgd_floor(c: Constants, step: float, noise: float) -> float:
    """Theorem 3: where E ||x^k - x*||^2 ends, at most.

    ``noise`` is mean_i omega ||grad of f_i(T_i(x)) at x*||^2; the bound is 2 step noise / (mu n).
    """
    return 2 * step * noise / (c.mu_alpha * c.n)


def diana_rate(c: Constants, step: float) -> float:
    """Theorem 4: the factor by which the expected Lyapunov function falls each round, at most."""
    return max(1 - step * c.mu_alpha, 1 - c.rho / 2)


def rounds_until(start: float, accuracy: float, rate: float) -> int:
    """The least k with rate^k start <= accuracy."""
    if start <= accuracy:
        return 0
    if not 0 <= rate < 1:
        raise ValueError("a rate of one or more never gets there")
    if rate == 0:
        return 1
    k = max(0, math.ceil(math.log(start / accuracy) / -math.log(rate)))
    # Logarithms may be off by one at a boundary.
    while k > 0 and rate ** (k - 1) * start <= accuracy:
        k -= 1
    while rate**k * start > accuracy:
        k += 1
    return k


def descent_rate(c: Constants) -> float:
    """1 - mu/L: by which a step of gradient descent of size 1/L shrinks ||x - x*||^2, at least.

    0 where mu = L, also where rounding makes L the smaller.
    """
    return max(0.0, 1 - c.mu_hat / c.l_hat)


def one_shot_alpha(c: Constants, variance: float, accuracy: float) -> float:
    """Theorem 1: the largest equal alpha for which x_avg is accurate, A = sqrt(2 eps / (L V)).

    ``variance`` is V = sum_i w_i ||x_i - x_avg||^2; infinite where all x_i agree.
    """
    spread = c.l_hat * variance
    return math.sqrt(2 * accuracy / spread) if spread > 0 else math.inf


def communications(c: Constants, variance: float, accuracy: float, alpha: float) -> int:
    """Rounds that Theorem 2 needs to reach ``accuracy`` with equal ``alpha``, the average included.

    0 for alpha = 0, 1 (x_avg alone) for alpha <= A, else one more than the steps of gradient
    descent: (1 - mu/L)^k alpha^2 L V / 2 <= accuracy.
    """
    if alpha == 0:
        return 0
    if alpha <= one_shot_alpha(c, variance, accuracy):
        return 1
    start = alpha**2 * c.l_hat * variance / 2
    return 1 + rounds_until(start, accuracy, descent_rate(c))


def affordable_alpha(c: Constants, variance: float, accuracy: float, rounds: int) -> float:
    """The largest equal alpha that ``rounds`` communications bring to ``accuracy``: A q^(R-1).

    q is 1 / sqrt(1 - mu/L). Where mu = L, one step of gradient descent after the average finds the
    minimiser, so that two communications do for every alpha.
    """
    if rounds == 0:
        return 0.0
    first, rate = one_shot_alpha(c, variance, accuracy), descent_rate(c)
    if rounds == 1 or first == 0:
        return min(1.0, first)
    if rate == 0:
        return 1.0
    q = rate**-0.5
    if (rounds - 1) * math.log(q) > LARGEST_LOGARITHM:
        return 1.0
    return min(1.0, first * q ** (rounds - 1))


def variance(rows: np.ndarray) -> float:
    """(1/n) sum_i ||rows_i - mean||^2 of (n, P)."""
    return float(((rows - rows.mean(0)) ** 2).sum(1).mean())


def spread(optima: np.ndarray, mass: np.ndarray) -> float:
    """V = sum_i w_i ||x_i - x_avg||^2 with w_i proportional to ``mass`` (n,), of (n, P)."""
    weights = mass / mass.sum() if mass.sum() > 0 else mass
    return float(weights @ ((optima - weights @ optima) ** 2).sum(1))


def largest_distance(optima: np.ndarray) -> float:
    """D = max_ij ||x_i - x_j||^2 of (n, P): squared, as the proof of Theorem 1 has it."""
    return max(float(((optima - row) ** 2).sum(1).max()) for row in optima)
