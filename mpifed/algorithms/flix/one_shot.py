"""The one-shot average: FLIX after a single round (Gasanov et al. 2021, Theorem 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from mpifed.exchange.base import Channel


def one_shot_average(
    optima: Tensor, squares: Tensor, smoothness: Tensor, channel: Channel
) -> Tensor | None:
    """x_avg = sum_i w_i x_i with w_i proportional to alpha_i^2 L_i, float64 (P,).

    ``optima`` are x_i (clients, P), ``squares`` alpha_i^2 and ``smoothness`` L_i, both (clients,)
    and the latter 0 where it is unknown, which counts as 1. None where all w_i are 0.
    """
    known = torch.where(smoothness > 0, smoothness, torch.ones_like(smoothness))
    mass = (squares * known)[:, None].to(optima)
    sent = channel.send(torch.cat([optima * mass, mass], 1), whole=True)
    summed = channel.sum(sent, torch.ones(len(optima), dtype=torch.float64))
    return summed[:-1] / summed[-1] if float(summed[-1]) > 0 else None
