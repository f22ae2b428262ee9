"""The theorems of FLIX (Gasanov et al. 2021): what steps, rounds and alpha its constants allow."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np

Setting = Literal["strongly_convex", "convex", "nonconvex"]

LARGEST_LOGARITHM = 700.0
"""Logarithm of a growth that exceeds any coefficient's bound; exp of more overflows float64."""


@dataclass(frozen=True)
class Constants:
    """Constants of the objective that step sizes depend on; see ``constants``.

    Attributes
    ----------
    n : int
        Clients.
    l_hat, mu_hat : float
        Means of L_i and mu_i.
    l_alpha, mu_alpha : float
        Smoothness and strong convexity of f~.
    l_largest : float
        max_i alpha_i^2 L_i, a smoothness that all f_i(T_i(x)) share.
    m1 : float
        max_i alpha_i^2 L_i omega_i.
    m2 : float
        max_i beta_i omega_i alpha_i^2 L_i.
    rho : float
        min_i beta_i.
    omega : float
        Variance of the compressor.
    """

    n: int
    l_hat: float
    mu_hat: float
    l_alpha: float
    mu_alpha: float
    l_largest: float
    m1: float
    m2: float
    rho: float
    omega: float

    @property
    def condition(self) -> float:
        """kappa = L_alpha / mu_alpha; infinite without strong convexity."""
        return self.l_alpha / self.mu_alpha if self.mu_alpha > 0 else math.inf


def constants(
    alpha: np.ndarray, smooth: np.ndarray, strong: float, omega: float = 0.0, beta: float = 1.0
) -> Constants:
    """Return the constants of all clients (Proposition 2, Theorems 3 and 4).

    Parameters
    ----------
    alpha : ndarray
        alpha_i, (n,).
    smooth : ndarray
        L_i, (n,).
    strong : float
        mu_i, the same for all.
    omega : float
        Variance of the compressor: E||C(v) - v||^2 <= omega ||v||^2.
    beta : float
        Rate of DIANA's memories.

    Examples
    --------
    >>> c = constants(np.array([0.5, 0.5]), np.array([4.0, 3.0]), strong=1.0)
    >>> c.l_alpha, c.mu_alpha, c.condition
    (0.875, 0.25, 3.5)
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


def variance(rows: np.ndarray) -> float:
    """Return the variance of models (Proposition 3): (1/n) sum_i ||rows_i - mean||^2.

    Parameters
    ----------
    rows : ndarray
        The models, (n, P).

    Examples
    --------
    >>> variance(np.array([[0.0], [2.0]]))
    1.0
    """
    return float(((rows - rows.mean(0)) ** 2).sum(1).mean())


def spread(optima: np.ndarray, mass: np.ndarray) -> float:
    """Return V = sum_i w_i ||x_i - x_avg||^2 (Theorem 1).

    Parameters
    ----------
    optima : ndarray
        x_i, (n, P).
    mass : ndarray
        Values proportional to w_i: L_i, or alpha_i^2 L_i where coefficients differ; (n,).

    Examples
    --------
    >>> spread(np.array([[0.0], [4.0]]), np.array([1.0, 3.0]))
    3.0
    """
    weights = mass / mass.sum() if mass.sum() > 0 else mass
    return float(weights @ ((optima - weights @ optima) ** 2).sum(1))


def largest_distance(optima: np.ndarray) -> float:
    """Return D = max_ij ||x_i - x_j||^2: squared, as in the proof of Theorem 1.

    Parameters
    ----------
    optima : ndarray
        x_i, (n, P).

    Examples
    --------
    >>> largest_distance(np.array([[0.0], [4.0], [1.0]]))
    16.0
    """
    return max(float(((optima - row) ** 2).sum(1).max()) for row in optima)


def dcgd_floor(c: Constants, step: float, noise: float) -> float:
    """Return the limit of the bound on E||x^k - x*||^2 of DCGD (Theorem 3).

    Parameters
    ----------
    c : Constants
        Of these mu_alpha and n are used.
    step : float
        gamma.
    noise : float
        (1/n) sum_i omega_i ||g_i||^2 for the gradients g_i of f_i(T_i(x)) at x*.

    Returns
    -------
    float
        2 gamma noise / (mu_alpha n).
    """
    return 2 * step * noise / (c.mu_alpha * c.n)


def diana_rate(c: Constants, step: float) -> float:
    """Return the largest factor on DIANA's expected Lyapunov function in a round (Theorem 4).

    Parameters
    ----------
    c : Constants
        Of these mu_alpha and rho are used.
    step : float
        gamma.

    Returns
    -------
    float
        max(1 - gamma mu_alpha, 1 - rho / 2).

    Examples
    --------
    >>> import numpy as np
    >>> from mpifed.algorithms.flix.theorems import constants
    >>> diana_rate(constants(np.ones(2), np.full(2, 4.0), strong=1.0, beta=0.2), step=0.25)
    0.9
    """
    return max(1 - step * c.mu_alpha, 1 - c.rho / 2)


def rounds_until(start: float, accuracy: float, rate: float) -> int:
    """Return the least k with rate^k start <= accuracy.

    Parameters
    ----------
    start, accuracy : float
        Both positive.
    rate : float
        In [0, 1).

    Raises
    ------
    ValueError
        For another rate, unless ``start`` is small enough already.

    Examples
    --------
    >>> rounds_until(8.0, 1.0, 0.5), rounds_until(8.1, 1.0, 0.5), rounds_until(0.5, 1.0, 0.5)
    (3, 4, 0)
    """
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
    """Return the largest factor on ||x - x*||^2 in a step of size 1 / L: 1 - mu_hat / l_hat.

    0 where mu_hat = l_hat, also where l_hat is smaller by rounding.

    Parameters
    ----------
    c : Constants
        Of these mu_hat and l_hat are used.

    Examples
    --------
    >>> import numpy as np
    >>> from mpifed.algorithms.flix.theorems import constants
    >>> descent_rate(constants(np.ones(2), np.full(2, 4.0), strong=1.0))
    0.75
    """
    return max(0.0, 1 - c.mu_hat / c.l_hat)


def one_shot_alpha(c: Constants, variance: float, accuracy: float) -> float:
    """Return the largest equal alpha for which the one-shot average is accurate (Theorem 1).

    Parameters
    ----------
    c : Constants
        Of these l_hat is used.
    variance : float
        V = sum_i w_i ||x_i - x_avg||^2; see ``spread``.
    accuracy : float
        epsilon, a gap of f~.

    Returns
    -------
    float
        A = sqrt(2 epsilon / (l_hat V)); infinite where all x_i agree.

    Examples
    --------
    >>> import numpy as np
    >>> from mpifed.algorithms.flix.theorems import constants
    >>> one_shot_alpha(constants(np.ones(2), np.full(2, 4.0), strong=1.0), 2.0, 0.25)
    0.25
    """
    spread = c.l_hat * variance
    return math.sqrt(2 * accuracy / spread) if spread > 0 else math.inf


def communications(c: Constants, variance: float, accuracy: float, alpha: float) -> int:
    """Return the rounds that gradient descent needs with equal ``alpha`` (Theorem 2).

    Parameters
    ----------
    c : Constants
        Of these l_hat and mu_hat are used.
    variance : float
        V, as for ``one_shot_alpha``.
    accuracy : float
        epsilon, a gap of f~.
    alpha : float
        The coefficient of all clients.

    Returns
    -------
    int
        Rounds, that of the one-shot average included: 0 for alpha = 0, 1 (x_avg alone) for
        alpha <= A, else one more than the least k with
        (1 - mu_hat / l_hat)^k alpha^2 l_hat V / 2 <= epsilon.

    Examples
    --------
    >>> import numpy as np
    >>> from mpifed.algorithms.flix.theorems import constants
    >>> c = constants(np.ones(2), np.full(2, 4.0), strong=2.0)
    >>> [communications(c, 2.0, 0.25, alpha) for alpha in (0, 0.25, 1.0)]
    [0, 1, 5]
    """
    if alpha == 0:
        return 0
    if alpha <= one_shot_alpha(c, variance, accuracy):
        return 1
    start = alpha**2 * c.l_hat * variance / 2
    return 1 + rounds_until(start, accuracy, descent_rate(c))


def affordable_alpha(c: Constants, variance: float, accuracy: float, rounds: int) -> float:
    """Return the largest equal alpha that reaches an accuracy in ``rounds`` (Theorem 2).

    Parameters
    ----------
    c : Constants
        Of these l_hat and mu_hat are used.
    variance : float
        V, as for ``one_shot_alpha``.
    accuracy : float
        epsilon, a gap of f~.
    rounds : int
        Communications, the one-shot average included.

    Returns
    -------
    float
        A q^(rounds - 1) with q = (1 - mu_hat / l_hat)^(-1/2), at most 1; 0 without a round. Where
        mu_hat = l_hat, one step after the average finds the minimiser: 1 from two rounds on.

    Examples
    --------
    >>> import numpy as np
    >>> from mpifed.algorithms.flix.theorems import constants
    >>> c = constants(np.ones(2), np.full(2, 4.0), strong=3.0)
    >>> [affordable_alpha(c, 2.0, 0.25, rounds) for rounds in (0, 1, 2, 3)]
    [0.0, 0.25, 0.5, 1.0]
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


def dgd_step(c: Constants) -> float:
    """Return the step size of gradient descent (Theorem 2): 1 / L_alpha.

    Parameters
    ----------
    c : Constants
        Of these L_alpha is used.

    Examples
    --------
    >>> import numpy as np
    >>> from mpifed.algorithms.flix.theorems import constants
    >>> dgd_step(constants(np.ones(2), np.array([4.0, 4.0]), strong=1.0))
    0.25
    """
    return 1 / c.l_alpha


def error_feedback_step(c: Constants, contraction: float) -> float:
    """Return the step size with error feedback (Stich and Karimireddy 2020, Theorem 9, no noise).

    Parameters
    ----------
    c : Constants
        Of these L_alpha is used.
    contraction : float
        delta of the compressor, E||C(v) - v||^2 <= (1 - delta) ||v||^2.

    Returns
    -------
    float
        1 / (10 L_alpha (2 / delta)).
    """
    return contraction / (20 * c.l_alpha)


def dcgd_step(c: Constants, setting: Setting) -> float:
    """Return the step size of DCGD (Theorems 3, 5 and 7).

    Parameters
    ----------
    c : Constants
        With the omega of the messages.
    setting : {'strongly_convex', 'convex', 'nonconvex'}
        What the f_i are known to be.

    Returns
    -------
    float
        1 / (L_alpha + 2 m1 / n), a quarter of it for convex f_i, and 1 / L_alpha for others,
        the largest that Theorem 7 allows.

    Examples
    --------
    >>> import numpy as np
    >>> from mpifed.algorithms.flix.theorems import constants
    >>> c = constants(np.ones(2), np.array([4.0, 4.0]), strong=1.0, omega=1.0)
    >>> dcgd_step(c, "strongly_convex"), dcgd_step(c, "convex"), dcgd_step(c, "nonconvex")
    (0.125, 0.03125, 0.25)
    """
    if setting == "nonconvex":
        return 1 / c.l_alpha
    step = 1 / (c.l_alpha + 2 * c.m1 / c.n)
    return step if setting == "strongly_convex" else step / 4


def diana_step(
    c: Constants, setting: Setting, smoothness: Literal["paper", "safe"] = "paper"
) -> float:
    """Return the step size of DIANA (Theorems 4, 6 and 8).

    Parameters
    ----------
    c : Constants
        With the omega of the messages and the rate of the memories.
    setting : {'strongly_convex', 'convex', 'nonconvex'}
        What the f_i are known to be.
    smoothness : {'paper', 'safe'}
        Smoothness in Theorem 8, for ``nonconvex``. ``safe`` replaces L_alpha by
        max_i alpha_i^2 L_i, since the proof needs a constant that all f_i(T_i(x)) share.

    Returns
    -------
    float
        1 / (L_alpha + 2 m1 / n + 4 m2 / (n rho)) for strongly convex f_i, a quarter of it for
        convex ones.

    Examples
    --------
    >>> import numpy as np
    >>> from mpifed.algorithms.flix.theorems import constants
    >>> c = constants(np.ones(2), np.array([4.0, 4.0]), strong=1.0, omega=1.0, beta=0.5)
    >>> diana_step(c, "strongly_convex") == 1 / (4 + 4 + 8)
    True
    """
    if setting == "nonconvex":
        eta = c.omega * (1 + c.omega) * (1 + 2 * (1 + c.omega)) / c.n
        bound = 2 / (1 + math.sqrt(1 + 8 * eta))
        if eta > 0:
            bound = min(1 / (2 * math.sqrt(eta)), bound)
        return bound / (c.l_alpha if smoothness == "paper" else c.l_largest)
    step = 1 / (c.l_alpha + 2 * c.m1 / c.n + 4 * c.m2 / (c.n * c.rho))
    return step if setting == "strongly_convex" else step / 4


def largest_memory_rate(omega: float) -> float:
    """Return the largest rate beta of DIANA's memories that is proven (Lemma 4): 1 / (1 + omega).

    Parameters
    ----------
    omega : float
        Variance of the compressor.

    Examples
    --------
    >>> largest_memory_rate(4.0)
    0.2
    """
    return 1 / (1 + omega)


def is_stable(beta: float, omega: float) -> bool:
    """Return whether DIANA's memories are proven to converge (Lemma 4): beta (1 + omega) <= 1.

    Parameters
    ----------
    beta : float
        Rate of the memories.
    omega : float
        Variance of the compressor.

    Examples
    --------
    >>> is_stable(0.2, omega=4.0), is_stable(0.3, omega=4.0)
    (True, False)
    """
    return beta * (1 + omega) <= 1 + 1e-12
