"""Gossip of compressed messages: CHOCO-Gossip (Koloskova, Stich and Jaggi 2019, Algorithm 1).

Every client keeps a public copy x̂ of its value x, its *replica*, which its neighbours hold too. A
round sends only the compressed difference of the two, by which all copies of the replica move, and
then gossips with the replicas:

    q_t = C'(x_t - x̂_t);    x̂_t <- x̂_t + q_t;    x_t <- x_t + gamma (sum_s W[t, s] x̂_s - x̂_t)

The error of the compression shrinks with the difference, so that consensus is reached exactly, and
a symmetric W keeps the mean of x whatever is lost. Replicas start at zero, which all neighbours
know without a message. Nothing here communicates: ``mix``, which multiplies rows by W, does.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from torch import Tensor

from mpifed.exchange.compression import Compressor
from mpifed.exchange.compression.base import PURPOSE
from mpifed.federation import Draws


def contracted(
    compressor: Compressor, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
) -> Tensor:
    """C'(rows), (clients, size): C / (1 + omega) if the compressor is unbiased, C itself if not.

    E||C'(v) - v||^2 <= (1 - delta) ||v||^2 with delta = ``compressor.contraction(size)``.
    """
    sent = compressor(rows, draws, ids, purpose)
    return sent / (1 + compressor.omega(rows.shape[1])) if compressor.unbiased else sent


def gossip_step(
    values: Tensor,
    replicas: Tensor,
    sent: Tensor,
    mix: Callable[[Tensor], Tensor],
    step_size: float,
) -> tuple[Tensor, Tensor]:
    """The new values and the new replicas of the clients hosted here.

    ``values`` are what the clients computed, ``sent`` is ``contracted`` of ``values - replicas``;
    all are (clients, size). ``mix`` maps rows X to the rows of W X, and ``step_size`` is gamma.
    With ``sent = values - replicas`` and a step size of 1 this is W ``values``, plain gossip.
    """
    replicas = replicas + sent
    return values + step_size * (mix(replicas) - replicas), replicas


def theoretical_step(gap: float, spread: float, delta: float) -> float:
    """A step size gamma with which CHOCO-Gossip converges (Theorem 2).

    ``gap`` is rho = 1 - |lambda_2(W)|, in (0, 1]; ``spread`` is beta = ||I - W||_2, in (0, 2];
    ``delta`` is the compressor's contraction. With

        gamma = rho delta / (16 rho + rho^2 + 4 beta^2 + 2 rho beta^2 - 8 rho delta)

    the error falls by ``theoretical_rate`` a round. It is cautious: larger steps often do better.
    """
    below = 16 * gap + gap**2 + 4 * spread**2 + 2 * gap * spread**2 - 8 * gap * delta
    return gap * delta / below


def theoretical_rate(gap: float, delta: float) -> float:
    """1 - rho^2 delta / 82, by which E sum_t (||x_t - mean||^2 + ||x_t - x̂_t||^2) falls a round.

    Theorem 2, for gamma = ``theoretical_step``; x_t is taken before the replica moves from it, x̂_t
    after.
    """
    return 1 - gap**2 * delta / 82
