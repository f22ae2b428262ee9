"""Clique averaging (Bellet, Kermarrec and Lavoie 2022, D-Cliques, Alg. 3).

The updates of a clique's members are averaged before the models are mixed, so that the members,
whose labels together are like those of all, move alike:

    x^(k+1/2) = x^k + V u^k,   V[i, j] = 1 / |C| for i and j of one clique C, else 0
    x^(k+1) = W x^(k+1/2)

A round sends updates within cliques, and models along all edges. The step sizes are those of plain
gossip; the bias left is that of the skews of cliques.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

import topologies
from mpifed.errors import InputError
from mpifed.message import Correction, Neighbours


class CliqueAveraging(Correction):
    """Clique averaging: the mean update of a clique, then gossip (Bellet et al. 2022)."""

    linear = True

    def width(self, size: int) -> int:
        return 0

    def clique_schedule(self, schedule: Any) -> topologies.Schedule:
        while not isinstance(schedule, topologies.Cliques):
            schedule = getattr(schedule, "inner", None)
            if schedule is None:
                raise InputError(
                    "exchange.correction is 'clique_averaging', which needs cliques; allowed: "
                    "exchange.schedule d_cliques"
                )
        return topologies.Static(schedule.within())

    def step(
        self, x: Tensor, moved: Tensor, memory: Tensor, neighbours: Neighbours
    ) -> tuple[Tensor, Tensor]:
        return neighbours.mix(neighbours.mix_in_cliques(moved - x).add_(x)), memory
