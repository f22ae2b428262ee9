"""How many clients take no part in training; a configuration asks it before torch is imported."""

from __future__ import annotations

import math


def count_unseen(n_clients: int, fraction: float) -> int:
    """Return how many clients are kept out of training: the rounded fraction, but never all.

    Examples
    --------
    >>> count_unseen(10, 0.25), count_unseen(10, 1.0)
    (3, 9)
    """
    return min(n_clients - 1, math.floor(fraction * n_clients + 0.5))
