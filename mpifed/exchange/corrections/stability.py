"""The largest step at which corrected gossip is stable where all clients have the same curvature.

For f_i(x) = h (x - c_i)^2 / 2 the eigenvectors of a symmetric W separate: along one of eigenvalue
lambda, gossip multiplies by lambda, u is -eta h x, and a round is a small matrix that multiplies
(x, what is remembered). Steps are too large where one has an eigenvalue outside of the unit circle.
Curvatures that differ from client to client may ask for less.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import scipy.sparse
import torch
from torch import Tensor

from mpifed.exchange.corrections.base import Correction, Neighbours

SMALL, MOST, EIGENVALUES, HALVINGS = 1e-3, 8.0, 17, 40
"""Steps between which eta L is looked for, how many lambda, how often the interval is halved."""


def largest_step(correction: Correction, least: float) -> float:
    """Return the least upper bound of eta L with which rounds are stable, 0 if there is none.

    Parameters
    ----------
    correction : Correction
        One whose rounds are linear in values and updates, and which needs no tree.
    least : float
        The least eigenvalue of W.

    Examples
    --------
    >>> from mpifed.exchange.corrections import build
    >>> round(largest_step(build("extra"), least=-0.2), 4)
    1.1
    """
    eigenvalues = np.linspace(least, 1, EIGENVALUES)
    if not all(_stable(correction, each, SMALL) for each in eigenvalues):
        return 0.0
    low, high = SMALL, MOST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        stable = all(_stable(correction, each, middle) for each in eigenvalues)
        low, high = (middle, high) if stable else (low, middle)
    return low


def _stable(correction: Correction, eigenvalue: float, step: float) -> bool:
    columns = torch.eye(1 + correction.width(1), dtype=torch.float64)
    x, kept = columns[:, :1], columns[:, 1:]
    one = np.arange(len(columns))
    scaled = partial(_scaled, eigenvalue)
    neighbours = Neighbours(scaled, scaled, scipy.sparse.eye_array(len(one)), one)
    moved = torch.cat(correction.step(x, (1 - step) * x, kept, neighbours), 1).T
    # What rounds conserve has the eigenvalue 1.
    return float(np.abs(np.linalg.eigvals(moved.numpy())).max()) <= 1 + 1e-6


def _scaled(factor: float, rows: Tensor) -> Tensor:
    return factor * rows
