"""Gossip of compressed messages: CHOCO-Gossip (Koloskova, Stich and Jaggi 2019, Algorithm 1).

Every client keeps a public copy x̂ of its value x, its *replica*, which its neighbours hold too. A
round sends only the compressed difference of the two, by which all copies of the replica move, and
then gossips with the replicas:

    q_t = C'(x_t - x̂_t);    x̂_t <- x̂_t + q_t;    x_t <- x_t + gamma (sum_s W[t, s] x̂_s - x̂_t)

The error of the compression shrinks with the difference, so that consensus is reached exactly, and
a symmetric W keeps the mean of x whatever is lost. Replicas start at zero, which all neighbours
know without a message. This module does not communicate; ``mix``, which multiplies rows by W, does.

The step sizes and bounds below take three constants:

* ``gap``, rho = 1 - ||(I - 11'/n) W||_2, in (0, 1]; 1 - |lambda_2(W)| for a symmetric W;
* ``spread``, beta = ||I - W||_2, in (0, 2];
* ``delta``, the compressor's contraction, in (0, 1].
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from torch import Tensor

from mpifed.exchange.compression import PURPOSE, Compressor, compressed
from mpifed.federation.clients import Draws

# Share of a run's rounds in which the distance from consensus must be known to halve.
SHARE_TO_HALVE = 0.1


def contracted(
    compressor: Compressor, rows: Tensor, draws: Draws, ids: np.ndarray, purpose: str = PURPOSE
) -> Tensor:
    """Return C'(rows): C / (1 + omega) for an unbiased compressor C, C itself for a biased one."""
    sent = compressed(compressor, rows, draws, ids, purpose)
    return sent / (1 + compressor.omega(rows.shape[1])) if compressor.unbiased else sent


def gossip_step(
    values: Tensor,
    replicas: Tensor,
    sent: Tensor,
    mix: Callable[[Tensor], Tensor],
    step_size: float,
) -> tuple[Tensor, Tensor]:
    """Return the new values and the new replicas of the clients hosted here."""
    replicas = replicas + sent
    return values + step_size * (mix(replicas) - replicas), replicas


def constants(weights: np.ndarray) -> np.ndarray:
    """Return ``gap`` and ``spread`` of a dense W whose rows sum to one, float64 (2,)."""
    away = np.linalg.norm(weights - weights.mean(axis=0), 2)
    return np.array([1 - away, np.linalg.norm(np.eye(len(weights)) - weights, 2)])


def optimal_step(gap: float, spread: float, delta: float) -> float:
    """Return the gamma in (0, 1] with the largest ``shrinkage``; ``gap`` must be above 0."""
    left = math.sqrt(1 - delta)
    both = math.sqrt(spread) + math.sqrt(gap + spread)
    below = math.sqrt(gap + spread) * (gap * gap + left * spread * both * both)
    return min(1.0, gap * (delta / (1 + left)) * both / below)


def shrinkage(step: float, gap: float, spread: float, delta: float) -> float:
    """Return mu, where 1 - mu bounds the factor by which the error falls in a round."""
    left = math.sqrt(1 - delta)
    remainder = delta / (1 + left)
    trace = step * (gap - left * spread) + remainder
    determinant = step * (gap * remainder - left * step * spread * (gap + spread))
    apart = step * (gap + left * spread) - remainder
    root = math.sqrt(apart * apart + 4 * left * (step * spread) ** 2)
    return 2 * determinant / (trace + root) if trace > 0 else (trace - root) / 2


def theoretical_step(gap: float, spread: float, delta: float) -> float:
    """Return a step size gamma with which CHOCO-Gossip converges (Theorem 2)."""
    below = 16 * gap + gap**2 + 4 * spread**2 + 2 * gap * spread**2 - 8 * gap * delta
    return gap * delta / below


def forecast(
    step: float, where_from: str, bounds: tuple[float, float, float], rounds: int
) -> list[str]:
    """Return lines for the log: the rate of ``step``, and a warning if it is negligible."""
    mu, prefix = shrinkage(step, *bounds), f"consensus step {step:.3g}, {where_from}: "
    if mu <= 0:
        return [f"{prefix}no bound is known for it"]
    halving = math.log(0.5) / (2 * math.log1p(-mu)) if mu < 1 else 1.0
    lines = [
        f"{prefix}by messages alone the squared distance from consensus, with that from replicas, "
        f"falls at least by {(1 - mu) ** 2:.6g} a round, to a half in {_rounds(halving)}"
    ]
    # The bound of a step above the optimal one is worse, the step itself often is not.
    if halving > SHARE_TO_HALVE * rounds and step <= optimal_step(*bounds):
        lines.append(
            f"warning: the run has {rounds:,} rounds, and its clients may need {_rounds(halving)} "
            "to halve their distance from consensus, so that in effect each trains alone; a larger "
            "exchange.consensus_step (at most 1) often works, but is not proven to and may diverge"
        )
    return lines


def _rounds(number: float) -> str:
    count = math.ceil(number)
    return f"{count:,} round{'s' * (count != 1)}" if count < 1e9 else f"{number:.1e} rounds"
