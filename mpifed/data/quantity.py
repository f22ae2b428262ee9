"""Clients of unequal size: the partition ``quantity_skew``."""

from __future__ import annotations

from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, Le

from mpifed.data.dealing import FEWEST, Alpha, MinSamples, check_enough, grouped

Law = Literal["dirichlet", "lognormal", "power_law"]
Spread = Annotated[float, Ge(0), Le(20)]


def quantity_skew(
    labels: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    *,
    min_samples: MinSamples = FEWEST,
    quantity_law: Law = "dirichlet",
    quantity_alpha: Alpha = 0.5,
    quantity_sigma: Spread = 1.0,
    quantity_exponent: Spread = 1.0,
) -> list[np.ndarray]:
    """Deal all samples at random to clients of unequal size (Li et al. 2022, sec. IV.C).

    Every client gets ``min_samples``. The rest is shared in proportion to q: Dir(alpha) of Li et
    al. 2022 ("Federated learning on non-IID data silos"), exp(sigma z) with z standard normal, or
    rank^-exponent, as in Li et al. 2020 ("Federated optimization in heterogeneous networks").

    Parameters
    ----------
    labels : ndarray
        One entry for each sample, which are only counted.
    n_clients : int
        Number of clients.
    rng : Generator
        Draws q, and who gets which sample.
    min_samples : int
        Fewest samples of a client.
    quantity_law : {'dirichlet', 'lognormal', 'power_law'}
        The law of q.
    quantity_alpha : float
        Concentration of ``dirichlet``: the larger, the more equal the clients.
    quantity_sigma : float
        Standard deviation of the logarithm under ``lognormal``; 0 makes equal clients.
    quantity_exponent : float
        Exponent of ``power_law``; 0 makes equal clients.

    Returns
    -------
    list of ndarray
        The samples of each client, int64, ascending.

    Raises
    ------
    InputError
        If there are fewer than ``n_clients * min_samples`` samples.
    """
    check_enough(len(labels), n_clients, min_samples)
    if quantity_law == "dirichlet":
        shares = rng.dirichlet(np.full(n_clients, quantity_alpha))
    elif quantity_law == "lognormal":
        shares = np.exp(quantity_sigma * rng.standard_normal(n_clients))
    else:
        shares = rng.permutation(np.arange(1.0, n_clients + 1) ** -quantity_exponent)
    sizes = min_samples + apportioned(len(labels) - n_clients * min_samples, shares)
    owner = np.empty(len(labels), np.int64)
    owner[rng.permutation(len(labels))] = np.repeat(np.arange(n_clients), sizes)
    return grouped(owner, n_clients)


def apportioned(total: int, shares: np.ndarray) -> np.ndarray:
    """Return whole numbers in proportion to ``shares``, int64, whose sum is ``total``.

    Each is the exact quotient rounded down, and what is left goes to the largest remainders.

    Parameters
    ----------
    total : int
        What is shared out, at least 0.
    shares : ndarray
        At least 0, with a positive sum.

    Examples
    --------
    >>> apportioned(10, np.array([1.0, 1.0, 2.0]))
    array([3, 2, 5])
    """
    exact = total * (shares / shares.sum())
    whole = np.floor(exact).astype(np.int64)
    rest = np.argsort(whole - exact, kind="stable")[: total - whole.sum()]
    whole[rest] += 1
    return whole
