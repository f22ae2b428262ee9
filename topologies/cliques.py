"""D-Cliques: cliques whose members together have the labels of all, and few edges between them.

Bellet, Kermarrec and Lavoie 2022 (D-Cliques: compensating for data heterogeneity with topology in
decentralized federated learning). The skew of a clique C is sum over labels l of |p_C(l) - p(l)|,
with p_C its members' mean share of l and p that of all nodes. Greedy swap (Alg. 2): begin with
random cliques, and swap two nodes of two random cliques where that lowers the sum of their skews.
Weights are those of Metropolis and Hastings (section 2.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from topologies.label_counts import shares
from topologies.matrix import MixingMatrix
from topologies.parameters import TopologyError
from topologies.sequences import Arrays, Static
from topologies.weights import metropolis_hastings

Array = NDArray[np.float64]
Between = Literal["ring", "complete"]


@dataclass(frozen=True)
class Cliques(Static):
    """A static matrix over cliques.

    Attributes
    ----------
    cliques : ndarray of int64, shape (n,)
        The clique of each node.
    """

    cliques: NDArray[np.int64]

    def within(self) -> MixingMatrix:
        """Return the matrix of the means over cliques."""
        n = self.n
        first, second = np.triu_indices(n, 1)
        same = self.cliques[first] == self.cliques[second]
        edges = np.stack([first[same], second[same]], axis=1)
        sizes = np.bincount(self.cliques)[self.cliques]
        return MixingMatrix(n, edges, 1 / sizes[edges[:, 0]])


def greedy_swap(labels: Array, size: int, swaps: int, seed: int) -> NDArray[np.int64]:
    """Return the clique of each node, int64 (n,); Alg. 2.

    Parameters
    ----------
    labels : ndarray of float64, shape (n, classes)
        The share of each class at each node.
    size : int
        The most members of a clique.
    swaps : int
        How many pairs of cliques are looked at.
    seed : int
        The seed of all draws.
    """
    random, n = np.random.default_rng(seed), len(labels)
    parts = np.array_split(random.permutation(n), -(-n // size))
    mean = labels.mean(axis=0)
    for _ in range(swaps if len(parts) > 1 else 0):
        a, b = random.choice(len(parts), 2, replace=False)
        one, other = parts[a], parts[b]
        moved = labels[other][None, :] - labels[one][:, None]  # to the one, for each pair
        off_one, off_other = labels[one].mean(axis=0) - mean, labels[other].mean(axis=0) - mean
        skew = np.abs(off_one + moved / len(one)).sum(axis=2)
        skew += np.abs(off_other - moved / len(other)).sum(axis=2)
        better = np.argwhere(skew < np.abs(off_one).sum() + np.abs(off_other).sum() - 1e-12)
        if len(better):
            i, j = better[random.integers(len(better))]
            one[i], other[j] = other[j], one[i]
    found = np.empty(n, np.int64)
    for clique, part in enumerate(parts):
        found[part] = clique
    return found


def clique_graph(cliques: NDArray[np.int64], between: Between) -> nx.Graph:
    """Return the cliques with an edge between each two (``complete``), or each and the next.

    The ends are the members with the fewest edges so far, the first of these.
    """
    graph = nx.empty_graph(len(cliques))
    members = [np.flatnonzero(cliques == c).tolist() for c in range(cliques.max() + 1)]
    for part in members:
        graph.add_edges_from((i, j) for i in part for j in part if i < j)
    count = len(members)
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    if between == "ring":
        pairs = [(a, b) for a, b in pairs if b - a in (1, count - 1)]
    for a, b in pairs:
        ends = [
            min(members[c], key=lambda i: (graph.degree(i) - len(members[cliques[i]]), i))
            for c in (a, b)
        ]
        graph.add_edge(*ends)
    return graph


def prepare_d_cliques(
    graph: object, rule: object, labels: str, size: int, between: Between, swaps: int, draw: int
) -> Arrays:
    """Return what :func:`restore_d_cliques` needs: ``edges``, ``weights`` and ``cliques``.

    Parameters
    ----------
    graph, rule : object
        Not used: the edges follow from the labels.
    labels : str
        The file of label counts.
    size : int
        The most members of a clique.
    between : str
        How cliques are connected, ``ring`` or ``complete``.
    swaps : int
        How many pairs of cliques are looked at.
    draw : int
        The seed of the search.

    Returns
    -------
    mapping of str to ndarray
        The arrays.
    """
    cliques = greedy_swap(shares(labels), size, swaps, draw)
    made = metropolis_hastings(clique_graph(cliques, between))
    return {"edges": made.edges, "weights": made.weights, "cliques": cliques}


def restore_d_cliques(n: int, seed: int, arrays: Arrays, labels: str, **given: object) -> Cliques:
    """Return the schedule of the arrays of :func:`prepare_d_cliques`.

    Parameters
    ----------
    n : int
        The number of nodes.
    seed : int
        Not used: nothing is drawn any more.
    arrays : mapping of str to ndarray
        The arrays.
    labels : str
        The file, for messages.
    **given : object
        The other parameters, which are not used: the arrays have what follows from them.

    Returns
    -------
    Cliques
        The schedule.

    Raises
    ------
    TopologyError
        If the file has another number of nodes.
    """
    cliques = arrays["cliques"]
    if len(cliques) != n:
        raise TopologyError(
            f"d_cliques: {labels!r} has label counts of {len(cliques)} nodes, not of {n}"
        )
    return Cliques(MixingMatrix(n, arrays["edges"], arrays["weights"]), cliques)
