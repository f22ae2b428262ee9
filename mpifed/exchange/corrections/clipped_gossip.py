"""Gossip that bounds what each neighbour can do (He, Karimireddy and Jaggi 2022, ClippedGossip).

A client moves towards a neighbour by the weighted distance, or by the weighted radius tau where
that is shorter; the paper's tau_i are one tau here:

    x_i <- z_i + sum_j W[i, j] clip(z_j - z_i, tau),   clip(v, tau) = min(1, tau / ||v||) v

where z = x + u is what clients have after their steps. Whatever an attacker sends moves a
neighbour by at most W[i, j] tau. Honest clients are clipped too: a small tau slows consensus, a
large one lets attackers through. Where no distance is above tau this is plain gossip, rounded
otherwise.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt
from torch import Tensor

from mpifed.exchange.corrections.base import Correction, Neighbours
from mpifed.staging import on_host


class ClippedGossip(Correction):
    """Clipped gossip: a neighbour moves a client by at most its weight times a radius (He 2022).

    Parameters
    ----------
    radius : float
        tau, the Euclidean distance beyond which what a neighbour sends is clipped.
    """

    needs = "positive"

    def __init__(self, *, radius: Annotated[float, Gt(0)]) -> None:
        self.radius = radius

    def width(self, size: int) -> int:
        return 0

    def step(
        self, x: Tensor, moved: Tensor, kept: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        assert neighbours.nearby is not None
        arcs = neighbours.nearby()
        squares = np.zeros(len(arcs.weights))
        for part, others in arcs.pieces(moved):
            own = on_host(moved[:, part]).astype(np.float64)
            for arc, (receiver, sender) in enumerate(
                zip(arcs.receivers, arcs.senders, strict=True)
            ):
                squares[arc] += np.square(others[sender] - own[receiver]).sum()
        away = np.sqrt(squares)
        shares = np.divide(self.radius, away, out=np.ones(len(away)), where=away > self.radius)
        shares *= arcs.weights
        after = torch.empty_like(moved)
        for part, others in arcs.pieces(moved):
            own = on_host(moved[:, part]).astype(np.float64)
            made = own.copy()
            for share, receiver, sender in zip(shares, arcs.receivers, arcs.senders, strict=True):
                made[receiver] += share * (others[sender] - own[receiver])
            after[:, part] = torch.from_numpy(made).to(moved)
        return after, kept
