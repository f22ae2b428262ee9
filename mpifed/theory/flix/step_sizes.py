"""Step sizes of gradient descent, DCGD and DIANA on the FLIX objective (Gasanov et al. 2021)."""

from __future__ import annotations

import math
from typing import Literal

from mpifed.theory.flix.quantities import Constants

Setting = Literal["strongly_convex", "convex", "nonconvex"]


def dgd_step(c: Constants) -> float:
    """Return the step size of gradient descent (Theorem 2): 1 / L_alpha.

    Parameters
    ----------
    c : Constants
        Of these L_alpha is used.

    Examples
    --------
    >>> import numpy as np
    >>> from mpifed.theory.flix import constants
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
    >>> from mpifed.theory.flix import constants
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
    >>> from mpifed.theory.flix import constants
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
