"""What clients that train privately by gossip learn of each other, for any mixing matrices.

Everything that client a sees in all rounds is linear in the clipped updates g and the noise z of
the clients, O = A g + B z (Bellet, Cyffers, Frey, Gaudel, Lerévérend and Taïani 2026,
arXiv:2510.17480, Definitions 4 and 5, Theorem 6). Here client i sends m_i = x_i + g_i + z_i, and
x <- W m, so that A has products of the W. An observer knows its own updates, noise and shares of
pairwise noise (the paper's PNDP, and SecLDP where there are any): what is left of the noise of a
round has the covariance R = C^2 (z^2 I + p^2 L), L being the Laplacian of the other clients' edges
(Rodio, Chen and Larsson 2025, arXiv:2501.14644; Allouah et al. 2024, arXiv:2405.01031). With
B = A R^(1/2), Theorem 8 makes what a sees of client u mu-GDP, where

    mu^2 = 4 C^2 sum_(s, t) |K_st|,   K = A_u' (A R A')^+ A_u,

A_u being the columns of u, one a round. The 4 C^2 is for neighbours that differ in the data of u,
in all rounds. The sum is the most that any directions of the differences give where K has no
negative entry. Elsewhere it is a bound, and so is T times the largest eigenvalue of K for T rounds
in which u takes part, which is at most what an observer of all messages learns: mu^2 has the
smaller one.

As in the paper, what other clients compute from messages that the observer does not see counts as
given. The epsilon of ``where: local`` assumes less: it holds against those who see every message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.sparse
from scipy.linalg import pinvh

Sees = Literal["messages", "averages"]


@dataclass(frozen=True)
class Mixed:
    """A round: W of each step of gossip, zero off its edges, and who takes part, bool (n,)."""

    steps: Sequence[scipy.sparse.csr_array]
    active: np.ndarray


def seen(rounds: Sequence[Mixed], observer: int, sees: Sees) -> np.ndarray:
    """Return A of one observer, (messages, rounds, n); zero for what it knows of itself."""
    n = len(rounds[0].active)
    models, found = np.zeros((n, len(rounds), n)), [np.zeros((0, len(rounds), n))]
    for t, now in enumerate(rounds):
        active = np.flatnonzero(now.active)
        models[active, t, active] += 1
        for w in now.steps:
            senders = w[[observer]].nonzero()[1]
            mixed = (w @ models.reshape(n, -1)).reshape(models.shape)
            others = senders[senders != observer]
            found.append(models[others] if sees == "messages" else mixed[[observer]])
            models = mixed
    made = np.concatenate(found)
    made[:, :, observer] = 0
    return made


def unknown_noise(now: Mixed, observer: int, z: float, pairwise: float) -> np.ndarray:
    """Return the covariance R / C^2 of a round that the observer's own secrets leave, (n, n)."""
    joined = (now.steps[0] != 0).toarray()
    joined = joined | joined.T
    joined[observer] = joined[:, observer] = False
    np.fill_diagonal(joined, False)
    laplacian = np.diag(joined.sum(axis=1)) - joined.astype(float)
    return np.asarray(z**2 * np.eye(len(joined)) + pairwise**2 * laplacian)


def privacy_losses(
    rounds: Sequence[Mixed], z: float, pairwise: float = 0.0, sees: Sees = "messages"
) -> np.ndarray:
    """Return mu of what each client learns of each, float64 (observers, clients).

    Parameters
    ----------
    rounds : sequence of Mixed
        All rounds of the run.
    z, pairwise : float
        Standard deviations of the own and of the pairwise noise over the clip norm.
    sees : {'messages', 'averages'}
        Whether clients see what each neighbour sends, or their weighted sums alone, as with secure
        summation in each neighbourhood (Koskela and Kulkarni 2025, arXiv:2505.19969).

    Returns
    -------
    ndarray
        mu of Gaussian differential privacy; NaN for what a client learns of itself.

    Examples
    --------
    >>> complete = scipy.sparse.csr_array(np.full((3, 3), 1 / 3))
    >>> losses = privacy_losses([Mixed([complete], np.ones(3, bool))] * 4, z=2.0)
    >>> losses.round(6).tolist()[0]  # that of four rounds of local noise, 2 sqrt(4) / z
    [nan, 2.0, 2.0]
    """
    n = len(rounds[0].active)
    found = np.full((n, n), np.nan)
    for observer in range(n):
        a = seen(rounds, observer, sees)
        noisy = a.copy()
        for t, now in enumerate(rounds):
            noisy[:, t] = a[:, t] @ unknown_noise(now, observer, z, pairwise)
        size = len(a), -1
        inverse = pinvh(noisy.reshape(size) @ a.reshape(size).T) if len(a) else np.zeros((0, 0))
        for client in np.flatnonzero(np.arange(n) != observer):
            of_client = a[:, :, client]
            known = of_client.T @ inverse @ of_client
            times = sum(now.active[client] for now in rounds)
            most = times * np.linalg.eigvalsh(known)[-1]
            found[observer, client] = 2 * np.sqrt(min(np.abs(known).sum(), max(most, 0.0)))
    return found


def epsilons(losses: np.ndarray, delta: float) -> np.ndarray:
    """Return epsilon of mu-GDP for a delta, element by element; 0 of nothing, NaN of NaN."""
    from dp_accounting import get_epsilon_gaussian

    different, places = np.unique(losses, return_inverse=True)
    found = [get_epsilon_gaussian(1 / mu, delta) if mu > 0 else mu for mu in different.tolist()]
    return np.array(found)[places].reshape(losses.shape)
