"""Gossip that bounds what each neighbour can do (He, Karimireddy and Jaggi 2022, ClippedGossip).

A client moves towards a neighbour by the weighted distance, or by the weighted radius tau_i where
that is shorter:

    x_i <- z_i + sum_j W[i, j] clip(z_j - z_i, tau_i),   clip(v, tau) = min(1, tau / ||v||) v

where z = x + u is what clients have after their steps. Whatever an attacker sends moves a
neighbour by at most W[i, j] tau_i. Honest clients are clipped too: a small tau slows consensus, a
large one lets attackers through. Where no distance is above tau this is plain gossip, rounded
otherwise.

The radius is one number for all, or follows distances. The paper's theory has

    tau_i^2 = (1 / delta) sum_{j honest} W[i, j] ||z_j - z_i||^2

with delta the weight of attackers among the neighbours of a client. Who is honest nobody knows, so
the sum is here over all neighbours but the most distant ones, of which as many are left out as
weigh delta together, the last of them in part. No other choice of weight delta leaves less, so it
is at most the sum over honest neighbours, wherever attackers are.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Annotated

import numpy as np
import torch
from annotated_types import Gt, Lt
from torch import Tensor

from mpifed.errors import InputError
from mpifed.message import Correction, Nearby, Neighbours
from mpifed.state import on_host


class ByDistances(Correction):
    """Base class of corrections that move clients to neighbours by shares of their distances."""

    needs = "positive"

    def width(self, size: int) -> int:
        return 0

    @abstractmethod
    def shares(self, arcs: Nearby, away: np.ndarray) -> np.ndarray:
        """Return by which share of each of the distances (arcs,) its receiver moves."""

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        assert neighbours.nearby is not None
        arcs = neighbours.nearby()
        squares = np.zeros(len(arcs.weights))
        for part, others in arcs.pieces(moved):
            values = on_host(moved[:, part]).astype(np.float64)
            for arc, (receiver, sender) in enumerate(
                zip(arcs.receivers, arcs.senders, strict=True)
            ):
                squares[arc] += np.square(others[sender] - values[receiver]).sum()
        shares = self.shares(arcs, np.sqrt(squares))
        after = torch.empty_like(moved)
        for part, others in arcs.pieces(moved):
            values = on_host(moved[:, part]).astype(np.float64)
            mixed = values.copy()
            for share, receiver, sender in zip(shares, arcs.receivers, arcs.senders, strict=True):
                mixed[receiver] += share * (others[sender] - values[receiver])
            after[:, part] = torch.from_numpy(mixed).to(moved)
        return after, memory


class ClippedGossip(ByDistances):
    """Clipped gossip: a neighbour moves a client by at most its weight times a radius (He 2022).

    Parameters
    ----------
    radius : float or None
        tau, the Euclidean distance beyond which what a neighbour sends is clipped.
    tolerated : float or None
        delta, in place of a radius: the weight of attackers among the neighbours of a client, at
        most; each client's radius then follows its distances in each round.
    """

    def __init__(
        self,
        *,
        radius: Annotated[float, Gt(0)] | None = None,
        tolerated: Annotated[float, Gt(0), Lt(1)] | None = None,
    ) -> None:
        if (radius is None) == (tolerated is None):
            count = "both" if radius is not None else "neither"
            raise InputError(
                f"exchange.correction is clipped_gossip with {count} of radius and tolerated; name "
                "one: a distance, or the weight of attackers for radii that follow distances"
            )
        self.radius, self.tolerated = radius, tolerated

    def shares(self, arcs: Nearby, away: np.ndarray) -> np.ndarray:
        radius = self._radii(arcs, away)
        shares = np.divide(radius, away, out=np.ones(len(away)), where=away > radius)
        return shares * arcs.weights

    def _radii(self, arcs: Nearby, away: np.ndarray) -> np.ndarray:
        """Return the radius of each arc's receiver, from the distances (arcs,)."""
        if self.radius is not None:
            return np.full(len(away), self.radius)
        assert self.tolerated is not None
        radii = np.zeros(len(away))
        for receiver in np.unique(arcs.receivers):
            incoming = np.flatnonzero(arcs.receivers == receiver)
            far_first = incoming[np.argsort(-away[incoming], kind="stable")]
            weights = arcs.weights[far_first]
            # What weighs delta is left out; the neighbour at its end counts in part.
            counted = np.clip(np.cumsum(weights) - self.tolerated, 0, weights)
            total = math.fsum(counted * np.square(away[far_first]))
            radii[incoming] = math.sqrt(total / self.tolerated)
        return radii
