"""The objective of FLIX and the constants of its theorems in plain numpy (Gasanov et al. 2021)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.special


def risk_of(x, y, w, l2=0.1):
    """The regularised logistic risk at w: value, gradient and Hessian."""
    signs = 2.0 * y - 1
    margins = signs * (x @ w)
    wrong = scipy.special.expit(-margins)
    return (
        np.logaddexp(0, -margins).mean() + l2 / 2 * w @ w,
        l2 * w - (x * (signs * wrong)[:, None]).mean(0),
        l2 * np.eye(len(w)) + (x * (wrong * (1 - wrong))[:, None]).T @ x / len(x),
    )


def quadratic_risk(x, y, w, l2=0.0):
    """The regularised half mean square of errors at w: value, gradient and Hessian."""
    error = x @ w - y
    curved = x.T @ x / len(x) + l2 * np.eye(len(w))
    return np.square(error).mean() / 2 + l2 / 2 * w @ w, x.T @ error / len(x) + l2 * w, curved


def nonconvex_risk(x, y, w, strength=0.1):
    """The logistic risk with strength sum w^2 / (1 + w^2)."""
    value, gradient, _ = risk_of(x, y, w, 0.0)
    penalty = strength * (w**2 / (1 + w**2)).sum()
    return value + penalty, gradient + strength * 2 * w / (1 + w**2) ** 2, None


def variance(rows):
    """(1/n) sum_i ||rows_i - mean||^2."""
    return ((rows - rows.mean(0)) ** 2).sum(1).mean()


def spread(optima, mass):
    """V = sum_i w_i ||x_i - x_avg||^2 of Theorem 1, w by ``mass``."""
    weights = mass / mass.sum()
    return weights @ ((optima - weights @ optima) ** 2).sum(1)


def largest_distance(optima):
    """D = max_ij ||x_i - x_j||^2."""
    return np.square(optima[:, None] - optima).sum(2).max()


@dataclass(frozen=True)
class Constants:
    """Of Proposition 2 and Theorems 3 and 4; ``strong`` is mu_i, the same for all clients."""

    alpha: np.ndarray
    smooth: np.ndarray
    strong: float
    omega: float = 0.0
    beta: float = 1.0

    @property
    def n(self):
        return len(self.smooth)

    @property
    def curved(self):
        return np.asarray(self.alpha) ** 2 * self.smooth

    @property
    def l_alpha(self):
        return self.curved.mean()

    @property
    def mu_alpha(self):
        return np.mean(np.square(self.alpha)) * self.strong

    @property
    def m1(self):
        return self.curved.max() * self.omega

    @property
    def dcgd_step(self):
        return 1 / (self.l_alpha + 2 * self.m1 / self.n)

    @property
    def diana_step(self):
        return 1 / (self.l_alpha + 6 * self.m1 / self.n)

    def diana_rate(self, step):
        return max(1 - step * self.mu_alpha, 1 - self.beta / 2)


class Risk:
    """f~ of a run: values and gradients at a point, with x_i and L_i as the run has them."""

    def __init__(self, run, problem, alpha=1.0, l2=0.0, risk=risk_of):
        self.samples, self.risk, self.l2 = problem.samples, risk, l2
        self.alpha = np.broadcast_to(np.asarray(alpha, float), len(problem.samples))
        self.optima, self.smooth = run.flix.optima.numpy(), run.flix.smoothness.numpy()

    def mixed(self, x):
        """alpha_i x + (1 - alpha_i) x_i of all clients."""
        return self.alpha[:, None] * x + (1 - self.alpha[:, None]) * self.optima

    def _parts(self, x):
        points = zip(self.samples, self.mixed(x), strict=True)
        return [self.risk(*sample, w, self.l2) for sample, w in points]

    def value(self, x):
        return np.mean([part[0] for part in self._parts(x)])

    def local_gradients(self, x):
        """Gradients of f_i at the mixed points."""
        return np.array([part[1] for part in self._parts(x)])

    def gradients(self, x):
        return self.alpha[:, None] * self.local_gradients(x)

    def gradient(self, x):
        return self.gradients(x).mean(0)

    def constants(self, omega=0.0, beta=1.0):
        return Constants(self.alpha, self.smooth, self.l2, omega, beta)
