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
    """Agreement of learnt components and mixtures with the true ones."""

    order: np.ndarray
    component_distance: float
    mixture_distance: float
    assigned: float


def cosine_distance(a: np.ndarray, b: np.ndarray) -> float:
    """Return 1 - <a, b> / (||a|| ||b||) of two arrays as vectors."""
    return float(1 - (a * b).sum() / (np.linalg.norm(a) * np.linalg.norm(b)))


def recovery(
    components: np.ndarray,
    mixture: np.ndarray,
    true_components: np.ndarray,
    true_mixture: np.ndarray,
) -> Recovery:
    """Compare what was learnt with the truth."""
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
