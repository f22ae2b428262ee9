"""Differential privacy of clients: Gaussian noise on clipped updates, by the server or by clients.

Neighbouring federations differ in one client's data and presence, in all rounds. With C the clip
norm, z the noise multiplier and k the expected number of participants,

    central    x + (1 / k) (sum_i clip(u_i) + N(0, z^2 C^2 I))
    local      client i sends clip(u_i) + N(0, z^2 C^2 I)

The first is DP-FedAvg with a fixed denominator (McMahan, Ramage, Talwar and Zhang 2018, Alg. 1).
In both clients count alike, so that one moves the sum by at most C. ``theory.accounting`` has
epsilon. Noise is pseudo-random and in floating point: this simulates private training and protects
nobody.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.aggregation import clipped
from mpifed.exchange.base import Round, Transform
from mpifed.federation.options import PrivacyOptions
from mpifed.random import SERVER

PURPOSE = "privacy"


def local_noise(options: PrivacyOptions, n_clients: int) -> Transform:
    """Return the transform by which each client clips its update and adds noise to it."""
    return Transform(np.ones(n_clients, bool), partial(noised, options=options))


def noised(updates: Tensor, ids: np.ndarray, round: Round, options: PrivacyOptions) -> Tensor:
    """Return clipped updates (clients, ...) of ``ids`` with noise of each client."""
    assert options.clip_norm is not None
    made = clipped(updates, options.clip_norm).clone()
    for row, client in zip(made, ids, strict=True):
        row += _noise(options, row, round, int(client))
    return made


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
    drawn = round.draws.stream(PURPOSE, client).standard_normal(like.numel())
    return torch.from_numpy(drawn * options.deviation).to(like).view(like.shape)
