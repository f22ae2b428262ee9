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

from mpifed.exchange.accounting import of_gdp

Sees = Literal["messages", "averages"]

# A variance of this share of the fresh noise is rounding error.
NEGLIGIBLE = 1e-12


@dataclass(frozen=True)
class Mixed:
    """A round: W of each step of gossip, zero off its edges, and who takes part, bool (n,)."""

    steps: Sequence[scipy.sparse.csr_array]
    active: np.ndarray


def unknown_noise(now: Mixed, observer: int, z: float, pairwise: float) -> np.ndarray:
    """Return the covariance R / C^2 of a round that the observer's own secrets leave, (n, n)."""
    joined = (now.steps[0] != 0).toarray()
    joined = joined | joined.T
    joined[observer] = joined[:, observer] = False
    np.fill_diagonal(joined, False)
    others = now.active & (np.arange(len(joined)) != observer)
    laplacian = np.diag(joined.sum(axis=1)) - joined.astype(float)
    return np.diag(z**2 * others) + pairwise**2 * laplacian


def learnt_by(
    observer: int, rounds: Sequence[Mixed], z: float, pairwise: float, sees: Sees
) -> np.ndarray:
    """Return C^2 K of each client, (n, rounds, rounds).

    Messages are made independent one step after the other, as by a Kalman filter: ``unknown`` is
    the covariance of the models given those seen before, ``moved`` by how much a unit update of
    each client in each round moves what was not predicted of the models.
    """
    n, count = len(rounds[0].active), len(rounds)
    unknown, moved = np.zeros((n, n)), np.zeros((n, 0, n))
    learnt = np.zeros((n, count, count))
    for t, now in enumerate(rounds):
        fresh = unknown_noise(now, observer, z, pairwise)
        unknown = unknown + fresh
        moved = np.concatenate([moved, np.diag(now.active.astype(float))[:, None]], axis=1)
        for w in now.steps:
            weights = w[[observer]].toarray()[0]
            weights[observer] = 0
            views = np.eye(n)[weights != 0] if sees == "messages" else weights[None]
            variances, axes = np.linalg.eigh(views @ unknown @ views.T)
            # What is below follows from messages of earlier rounds.
            informative = variances > NEGLIGIBLE * np.trace(fresh)
            views = (axes[:, informative] / np.sqrt(variances[informative])).T @ views
            new = np.tensordot(views, moved, 1)
            by_client = new.transpose(2, 1, 0)
            learnt[:, : t + 1, : t + 1] += by_client @ by_client.transpose(0, 2, 1)
            gain = unknown @ views.T
            moved = (w @ (moved - np.tensordot(gain, new, 1)).reshape(n, -1)).reshape(moved.shape)
            unknown = w @ (w @ (unknown - gain @ gain.T)).T
    return learnt


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
    losses = np.zeros((n, n))
    for observer in range(n):
        learnt = learnt_by(observer, rounds, z, pairwise, sees)
        most = sum(now.active for now in rounds) * np.linalg.eigvalsh(learnt)[:, -1]
        square = np.minimum(np.abs(learnt).sum(axis=(1, 2)), np.maximum(most, 0))
        losses[observer] = 2 * np.sqrt(square)
    np.fill_diagonal(losses, np.nan)
    return losses


def epsilons(losses: np.ndarray, delta: float) -> np.ndarray:
    """Return epsilon of mu-GDP for a delta, element by element; 0 of nothing, NaN of NaN."""
    different, positions = np.unique(losses, return_inverse=True)
    values = [of_gdp(mu, delta) if mu > 0 else mu for mu in different.tolist()]
    return np.array(values)[positions].reshape(losses.shape)
