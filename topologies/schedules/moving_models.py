"""Schedules of a few models that move from node to node, ``teleport`` and ``random_walk``.

The models at the nodes h_b(k) mix on the way to their next holders by a matrix V^k over the models,
x_(h_a(k+1)) <- sum_b V^k[a, b] (x + u)_(h_b(k)): Takezawa and Stich 2024, Alg. 1 (``teleport``);
Ayache and El Rouayheb 2021, Sun et al. 2018 (``random_walk``).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.graphs.build import build_graph
from topologies.matrix import MixingMatrix
from topologies.schedules.circulants import base_k, one_peer_exponential, static_exponential
from topologies.schedules.from_matrices import restore_static
from topologies.schedules.sequences import (
    Arrays,
    Schedule,
    Static,
    check_round,
    identity,
    stream,
)
from topologies.weights.rules import metropolis_hastings

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Nodes = NDArray[np.int64]

# Schedules over the models of ``teleport``.
Over = Literal["base_k", "one_peer_exponential", "static_exponential", "ring"]
OVER: dict[Over, Callable[[int], Schedule]] = {
    "base_k": base_k,
    "one_peer_exponential": one_peer_exponential,
    "static_exponential": static_exponential,
    "ring": lambda m: Static(metropolis_hastings(build_graph("ring", m))),
}


@dataclass(frozen=True)
class Moving:
    """Models that mix on the way from their holders in a round to those in the next."""

    n: int
    inner: Schedule
    holders: Callable[[int], Nodes]
    period = None
    tau = 1
    symmetric = False
    doubly_stochastic = False

    def taking_part(self, k: int) -> Nodes:
        """Return those that send or receive a model in round k, ascending, int64."""
        return np.union1d(self.holders(k), self.holders(k + 1))

    def matrix(self, k: int) -> MixingMatrix:
        """Return W^k for the round k >= 1."""
        mixing = self.inner.matrix(check_round(k)).to_sparse().tocoo()
        to, of = self.holders(k + 1)[mixing.row], self.holders(k)[mixing.col]
        # Where a model stays, its weight is what is left.
        moves = (to != of) & (mixing.data != 0)
        edges = np.stack([to[moves], of[moves]], axis=1)
        return MixingMatrix(self.n, edges, mixing.data[moves], symmetric=False)


def teleport(
    n: int, seed: int, *, active: Annotated[int, Ge(1)] = 2, over: Over = "base_k"
) -> Moving:
    """Few models, at nodes that are drawn anew in each round; directed (Teleportation).

    Parameters
    ----------
    active
        Number of models.
    over
        How they mix.
    """
    if active > n:
        raise TopologyError(
            f"teleport: active is {active}, but there are {n} nodes; it must be an integer in "
            f"[1, {n}]"
        )

    def holders(k: int) -> Nodes:
        return stream(seed, "holders", k).choice(n, active, replace=False)

    inner: Schedule = Static(identity(1)) if active == 1 else OVER[over](active)
    return Moving(n, inner, holders)


def restore_random_walk(n: int, seed: int, arrays: Arrays) -> Moving:
    """One model that walks along the edges, by the weights; directed (Markov chain SGD)."""
    from scipy.sparse import csr_array

    weights = csr_array(restore_static(n, arrays).matrix(1).to_sparse())
    if weights.data.min(initial=0.0) < -1e-12:
        raise TopologyError(
            "random_walk: a weight is negative, but weights are probabilities; allowed: weights "
            "such as metropolis_hastings"
        )
    return Moving(n, Static(identity(1)), Walk(seed, weights).at)


@dataclass
class Walk:
    """A Markov chain on the nodes, from round to round."""

    seed: int
    weights: csr_array
    _path: list[int] = field(default_factory=list)

    def at(self, k: int) -> Nodes:
        """Return where it is in the round k >= 1, int64 (1,)."""
        check_round(k)
        indptr, nodes, weights = self.weights.indptr, self.weights.indices, self.weights.data
        while len(self._path) < k:
            draw = stream(self.seed, "walk", len(self._path) + 1).random()
            if not self._path:
                self._path.append(int(draw * (len(indptr) - 1)))
                continue
            row = slice(indptr[self._path[-1]], indptr[self._path[-1] + 1])
            level = np.cumsum(np.maximum(weights[row], 0))
            # A product that is rounded up to the sum would be beyond the last.
            at = min(draw * level[-1], np.nextafter(level[-1], 0))
            step = np.searchsorted(level, at, side="right")
            self._path.append(int(nodes[row][step]))
        return np.array([self._path[k - 1]])
