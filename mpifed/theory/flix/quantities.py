"""Constants of the FLIX objective and of its clients' optima (Gasanov et al. 2021).

Propositions 2 and 3, and V and D of Theorem 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np


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
