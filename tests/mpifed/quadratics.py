"""Quadratics f_i(x) = (x - c_i)' A_i (x - c_i) / 2 of eight clients, and descent through gossip."""

from __future__ import annotations

from typing import Any

import numpy as np
from moves import moved, values

import topologies

N, D, SEED = 8, 3, 5
DRAW = np.random.default_rng(1)
MATRICES = np.stack(
    [
        (q := np.linalg.qr(DRAW.normal(size=(D, D)))[0]) @ np.diag(DRAW.uniform(1, 4, D)) @ q.T
        for _ in range(N)
    ]
)
CENTRES = DRAW.normal(size=(N, D)) * 3
OPTIMUM = np.linalg.solve(MATRICES.sum(0), np.einsum("nij,nj->i", MATRICES, CENTRES))
MH = "metropolis_hastings"


def gradients(x):
    return np.einsum("nij,nj->ni", MATRICES, x - CENTRES)


def gossip(
    correction: Any,
    topology: Any = "ring",
    weights: Any = MH,
    schedule: Any = "static",
    **more: Any,
) -> dict[str, Any]:
    """The section ``exchange`` of gossip with a correction."""
    graph = {"topology": topology, "weights": weights, "schedule": schedule}
    return {"name": "gossip", "correction": correction, **graph, **more}


def matrix_of(section: dict[str, Any], k: int = 1, n: int = N) -> np.ndarray:
    """W^k of a section whose graph is not drawn, dense."""
    schedule, weights = section["schedule"], section["weights"]
    if schedule != "static":
        named = {"name": schedule} if isinstance(schedule, str) else schedule
        options = {key: value for key, value in named.items() if key != "name"}
        return topologies.build_schedule(named["name"], n, **options).matrix(k).to_dense()
    graph = topologies.build_graph(section["topology"], n)
    name = weights["name"] if isinstance(weights, dict) else weights
    return topologies.mixing_matrix(graph, name).to_dense()


class Descent:
    """Gradient descent through gossip, from zero: one full gradient a round."""

    def __init__(self, section, eta, gradient=gradients, x=None, n=N, **options):
        self.start = np.zeros((n, D)) if x is None else x

        def move(k, ids, rows):
            every = np.zeros((n, D))
            every[ids] = rows
            return -eta * gradient(every)[ids]

        self.run = moved(move, n, self.start, 0, exchange=section, **options)

    def go(self, rounds):
        return values(self.run.advance(rounds))
