"""How well components and clusters were recovered (Marfoq et al. 2021, App. J.4).

Where the data were drawn from known components, what was learnt is compared with them after the
components are matched: which is called the first is arbitrary.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.optimize


@dataclass(frozen=True)
class Recovery:
    """Agreement of learnt components and mixtures with the true ones.

    Attributes
    ----------
    order : ndarray
        The learnt component that is matched with each true one, int64 (M,).
    component_distance : float
        Cosine distance of all true components and the matched ones, as one vector each.
    mixture_distance : float
        Cosine distance of all true mixture weights and the matched ones, as one vector each.
    assigned : float
        Share of the clients whose largest weight is that of their true largest one.
    """

    order: np.ndarray
    component_distance: float
    mixture_distance: float
    assigned: float


def cosine_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return 1 - <a, b> / (||a|| ||b||) of two arrays as vectors.

    Examples
    --------
    >>> cosine_distance(np.array([1.0, 0.0]), np.array([0.0, 2.0]))
    1.0
    """
    return float(1 - (a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))


def recovery(
    components: np.ndarray,
    mixture: np.ndarray,
    true_components: np.ndarray,
    true_mixture: np.ndarray,
) -> Recovery:
    """Compare what was learnt with the truth.

    Parameters
    ----------
    components, true_components : ndarray
        theta, (M, d). A bias that the truth does not have is left out by the caller.
    mixture, true_mixture : ndarray
        pi, (clients, M).

    Returns
    -------
    Recovery
        Components are matched so that the sum of their cosine distances is least.

    Examples
    --------
    >>> truth, pi = np.eye(2), np.array([[1.0, 0.0], [0.0, 1.0]])
    >>> found = recovery(truth[::-1], pi[:, ::-1], truth, pi)
    >>> round(found.component_distance, 12), round(found.mixture_distance, 12), found.assigned
    (0.0, 0.0, 1.0)
    """
    cost = [[cosine_distance(true, each) for each in components] for true in true_components]
    order = scipy.optimize.linear_sum_assignment(np.array(cost))[1]
    pi = mixture[:, order]
    assigned = pi.argmax(1) == true_mixture.argmax(1)
    return Recovery(
        order,
        cosine_distance(components[order], true_components),
        cosine_distance(pi, true_mixture),
        float(assigned.mean()),
    )
