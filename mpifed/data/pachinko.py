"""Pachinko allocation: labels in two stages, coarse then fine (the partition ``pachinko``)."""

from __future__ import annotations

import numpy as np

from mpifed.data.dealing import FEWEST, Alpha, MinSamples, check_enough, deal


def pachinko(
    pairs: np.ndarray,
    n_clients: int,
    rng: np.random.Generator,
    *,
    min_samples: MinSamples = FEWEST,
    pachinko_alpha: Alpha = 0.4,
    pachinko_beta: Alpha = 10.0,
) -> list[np.ndarray]:
    """Deal by Pachinko allocation (Reddi et al. 2021, App. C.1; Marfoq et al. 2021, App. I.1.1).

    A client draws weights of the coarse labels ~ Dir(alpha) and, within each coarse label, of its
    fine labels ~ Dir(beta). Its samples come one by one: a coarse label, then a fine label, then a
    sample of that label that nobody has. A fine label without samples left is removed and the
    weights beside it are renormalised; so is a coarse label whose fine labels are all removed.
    Clients draw in their order and get equally many samples, or one more.

    Parameters
    ----------
    pairs : ndarray
        Coarse and fine label of each sample, int64 (samples, 2).
    n_clients : int
        Number of clients.
    rng : Generator
        Draws weights, labels and samples.
    min_samples : int
        Fewest samples of a client.
    pachinko_alpha : float
        Concentration over coarse labels: the larger, the more alike clients are.
    pachinko_beta : float
        Concentration over the fine labels of a coarse one.

    Returns
    -------
    list of ndarray
        The samples of each client, int64, ascending.

    Raises
    ------
    InputError
        If there are fewer than ``n_clients * min_samples`` samples.
    """
    check_enough(len(pairs), n_clients, min_samples)
    leaves, leaf_of, left = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
    _, branch = np.unique(leaves[:, 0], return_inverse=True)
    counts = np.zeros((n_clients, len(leaves)), np.int64)
    for client in range(n_clients):
        quota = len(pairs) // n_clients + (client < len(pairs) % n_clients)
        coarse = _log_gamma(branch.max() + 1, pachinko_alpha, rng)
        fine = _log_gamma(len(leaves), pachinko_beta, rng)
        counts[client] = _draw(quota, coarse, fine, branch, left, rng)
        left -= counts[client]
    return deal(leaf_of.reshape(-1), np.arange(len(leaves)), counts, rng)


def _log_gamma(size: int, alpha: float, rng: np.random.Generator) -> np.ndarray:
    """Logarithms of Gamma(alpha, 1) draws, which normalised are ~ Dir(alpha); float64 (size,).

    Gamma(alpha) is Gamma(alpha + 1) U^(1 / alpha). A small alpha would make most of the draws 0,
    and nothing to renormalise when the others are removed.
    """
    larger = np.log(rng.standard_gamma(alpha + 1, size))
    return larger + np.log1p(-rng.random(size)) / alpha


def _draw(
    quota: int,
    coarse: np.ndarray,
    fine: np.ndarray,
    branch: np.ndarray,
    left: np.ndarray,
    rng: np.random.Generator,
) -> np.ndarray:
    """How many samples of each leaf one client draws, of those ``left``; int64 (leaves,)."""
    taken = np.zeros(len(branch), np.int64)
    while (missing := quota - taken.sum()) > 0:
        weights = _leaf_weights(coarse, fine, branch, left > taken)
        drawn = rng.choice(len(branch), missing, p=weights)
        # Draws are valid up to the one that takes the last sample of a leaf.
        seen = np.zeros(len(drawn), np.int64)
        for leaf in np.unique(drawn):
            at = drawn == leaf
            seen[at] = np.arange(1, at.sum() + 1)
        last = np.flatnonzero(seen == (left - taken)[drawn])
        valid = drawn[: last[0] + 1] if len(last) else drawn
        taken += np.bincount(valid, minlength=len(branch))
    return taken


def _leaf_weights(
    coarse: np.ndarray, fine: np.ndarray, branch: np.ndarray, open_leaves: np.ndarray
) -> np.ndarray:
    """Probability of each leaf, given those that have samples left; float64 (leaves,)."""
    is_open = np.bincount(branch, open_leaves, len(coarse)) > 0
    outer = _softmax(np.where(is_open, coarse, -np.inf), np.zeros(len(coarse), np.int64))
    product = outer[branch] * _softmax(np.where(open_leaves, fine, -np.inf), branch)
    return product / product.sum()


def _softmax(logs: np.ndarray, group: np.ndarray) -> np.ndarray:
    """exp(``logs``) over its sum in each group; 0 in groups that are -inf throughout."""
    largest = np.full(group.max() + 1, -np.inf)
    np.maximum.at(largest, group, logs)
    weights = np.exp(logs - np.where(np.isfinite(largest), largest, 0)[group])
    totals = np.bincount(group, weights)
    return weights / np.where(totals == 0, 1, totals)[group]
