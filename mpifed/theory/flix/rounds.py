"""Rounds that FLIX needs, and coefficients for a number of rounds.

Gasanov et al. 2021, Theorems 1 to 4.
"""

from __future__ import annotations

import math

from mpifed.theory.flix.quantities import Constants

LARGEST_LOGARITHM = 700.0
"""Logarithm of a growth that exceeds any coefficient's bound; exp of more overflows float64."""


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
    >>> from mpifed.theory.flix import constants
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
    >>> from mpifed.theory.flix import constants
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
    >>> from mpifed.theory.flix import constants
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
    >>> from mpifed.theory.flix import constants
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
    >>> from mpifed.theory.flix import constants
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
