"""Differential privacy of clients: Gaussian noise on clipped updates, by the server or by clients.

Neighbouring federations differ in one client's data and presence, in all rounds. With C the clip
norm, z the noise multiplier and k the expected number of participants,

    central    x + (1 / k) (sum_i clip(u_i) + N(0, z^2 C^2 I))
    local      client i sends clip(u_i) + N(0, z^2 C^2 I)
    gossip     client i sends x_i + clip(u_i) + N(0, z^2 C^2 I) + sum_j v_ij

The first is DP-FedAvg with a fixed denominator (McMahan, Ramage, Talwar and Zhang 2018, Alg. 1).
The third has in the sum those clients j that send to i in the round, or it to them, and
v_ij = -v_ji, N(0, p^2 C^2 I), from a secret of i and j: DECOR (Allouah, Koloskova, El Firdoussi,
Jaggi and Guerraoui 2024, arXiv:2405.01031), the covariance z^2 I + p^2 L of Rodio, Chen and Larsson
2025 (arXiv:2501.14644). At a server clients count alike, so that one moves the sum by at most C.
``accounting`` has epsilon, ``observers`` what clients learn of each other.
Noise is pseudo-random and in floating point: this simulates private training and protects nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.aggregation import clipped
from mpifed.exchange.base import Round, Transform, Updates
from mpifed.federation.options import PrivacyOptions
from mpifed.random import SERVER

PURPOSE, PAIRWISE = "privacy", "privacy, with client"


class LocalNoise(Transform):
    """Each client clips its update and adds noise to it."""

    def __init__(self, options: PrivacyOptions) -> None:
        self.options = options

    def apply(self, updates: Updates, state: Any, channel: Any) -> tuple[Updates, Any]:
        round = channel.round
        noisy = noised(updates.differences, round.ids, round, self.options)
        return updates.replaced(torch.arange(len(noisy), device=noisy.device), noisy), state


def noised(updates: Tensor, ids: np.ndarray, round: Round, options: PrivacyOptions) -> Tensor:
    """Return clipped updates (clients, ...) of ``ids`` with noise of each client."""
    assert options.clip_norm is not None
    noisy = clipped(updates, options.clip_norm).clone()
    for row, client in zip(noisy, ids, strict=True):
        row += _noise(options, row, round, int(client))
    return noisy


class PairwiseNoise(Transform):
    """Clients that exchange models in a round add opposite noise."""

    def __init__(self, options: PrivacyOptions) -> None:
        self.deviation = options.pairwise_multiplier * (options.clip_norm or 0.0)

    def apply(self, updates: Updates, state: Any, channel: Any) -> tuple[Updates, Any]:
        round, rows = channel.round, updates.values.clone()
        steps = channel.exchange.arcs(round.number, round.active, rows.element_size())
        arcs = np.sort(round.federation.training[steps[0]], axis=1)
        for first, second in np.unique(arcs, axis=0).tolist():
            for row in np.flatnonzero(np.isin(round.ids, (first, second))).tolist():
                noise = _drawn(rows[row], round, f"{PAIRWISE} {second}", first, self.deviation)
                rows[row] += noise if round.ids[row] == first else -noise
        return replace(updates, values=rows), state


def central_noise(
    updates: Tensor,
    total: Callable[[Tensor, Tensor], Tensor],
    options: PrivacyOptions,
    round: Round,
) -> Tensor:
    """Return the mean over the expected participants of clipped updates and noise, float64.

    ``total(rows, weights)`` is the weighted sum over all ranks. Collective.
    """
    assert options.clip_norm is not None
    ones = torch.ones(len(updates), dtype=torch.float64)
    summed = total(clipped(updates, options.clip_norm), ones)
    expected = len(round.federation.training) * round.federation.inclusion
    return (summed + _noise(options, summed, round, SERVER)) / expected


def _noise(options: PrivacyOptions, like: Tensor, round: Round, client: int) -> Tensor:
    return _drawn(like, round, PURPOSE, client, options.deviation)


def _drawn(like: Tensor, round: Round, purpose: str, client: int, deviation: float) -> Tensor:
    drawn = round.draws.stream(purpose, client).standard_normal(like.numel())
    return torch.from_numpy(drawn * deviation).to(like).view(like.shape)
