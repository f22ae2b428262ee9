"""Static matrices for clients of unlike labels, from how many of each they have.

D-Cliques (Bellet, Kermarrec and Lavoie 2022, Alg. 2 and section 2.2) and STL-FW. The skew of a
clique C is the sum over labels l of |p_C(l) - p(l)|, with the mean shares p_C of its members and p
of all nodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.graphs.families import Between, joined_cliques
from topologies.graphs.files import read_numbers
from topologies.matrix import MixingMatrix
from topologies.memory_limits import check_memory
from topologies.node_counts import check_nodes
from topologies.schedules.sequences import Arrays, Periodic, Static
from topologies.weights.rules import metropolis_hastings

Array = NDArray[np.float64]

# Dense matrices of nodes x nodes that the search holds.
MATRICES = 4


def shares(path: str) -> Array:
    """Return the share of each label at each node, float64 (nodes, classes), from a file of
    counts.
    """
    counts = read_numbers(path)
    if counts.min(initial=0) < 0 or not np.all(counts.sum(axis=1) > 0):
        raise TopologyError(
            f"{path!r} does not hold label counts: they must be at least 0, and above 0 for some "
            "label of every node"
        )
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def stl_fw(labels: Array, neighbours: int, balance: float = 0.1) -> MixingMatrix:
    """Return the W of STL-FW; directed and doubly stochastic."""
    from scipy.optimize import linear_sum_assignment  # here, since it takes half a second

    n = len(labels)
    check_memory(8 * MATRICES * n**2, f"stl_fw on {n} nodes")
    away = labels - labels.mean(axis=0)
    # W 11'/n = 11'/n for doubly stochastic W, so that both terms see W - 11'/n.
    gram = away @ away.T + balance * np.eye(n)
    w = np.eye(n)
    for _ in range(min(neighbours, n - 1)):
        gradient = 2 / n * (w - 1 / n) @ gram
        rows, columns = linear_sum_assignment(gradient)
        direction = -w
        direction[rows, columns] += 1
        slope, bend = (direction * gradient).sum(), ((direction @ gram) * direction).sum() / n
        step = 1.0 if -slope >= 2 * bend else -slope / (2 * bend)
        if slope >= 0 or step <= 0:
            break
        w += step * direction
    receiver, sender = np.nonzero((w > 0) & ~np.eye(n, dtype=bool))
    reached = float((((w - 1 / n) @ gram) * (w - 1 / n)).sum() / n)
    edges = np.stack([receiver, sender], axis=1)
    info = {"weights": "stl_fw", "objective": reached}
    return MixingMatrix(n, edges, w[receiver, sender], symmetric=False, info=info)


def prepare_stl_fw(
    *, labels: str, neighbours: Annotated[int, Ge(1)] = 5, balance: Annotated[float, Ge(0)] = 0.1
) -> Arrays:
    """Return the matrix of STL-FW: ``edges``, ``weights`` and ``nodes``.

    Parameters
    ----------
    labels
        CSV file of label counts, a row for each node and a column for each label; data: counted in
        the data of a run.
    neighbours
        Most neighbours of a node.
    balance
        Weight of mixing as such against that of labels.
    """
    matrix = stl_fw(shares(labels), neighbours, balance)
    return {"edges": matrix.edges, "weights": matrix.weights, "nodes": np.array([matrix.n])}


def restore_stl_fw(n: int, arrays: Arrays, *, labels: str) -> Static:
    """Few neighbours whose labels together are like those of all; directed (STL-FW)."""
    check_nodes("stl_fw", n, int(arrays["nodes"][0]), labels)
    return Static(MixingMatrix(n, arrays["edges"], arrays["weights"], symmetric=False))


@dataclass(frozen=True)
class Cliques(Periodic):
    """A static matrix over cliques."""

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
    """Return the clique of each node, int64 (n,); Alg. 2."""
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
    clique_of = np.empty(n, np.int64)
    for clique, part in enumerate(parts):
        clique_of[part] = clique
    return clique_of


def prepare_d_cliques(
    *,
    labels: str,
    size: Annotated[int, Ge(2)] = 10,
    between: Between = "complete",
    swaps: Annotated[int, Ge(0)] = 1000,
    draw: Annotated[int, Ge(0)] = 0,
) -> Arrays:
    """Return the matrix of D-Cliques: ``edges``, ``weights`` and ``cliques``.

    Parameters
    ----------
    labels
        CSV file of label counts, a row for each node and a column for each label; data: counted in
        the data of a run.
    size
        Most members of a clique.
    between
        Edges between cliques.
    swaps
        Pairs of cliques in which a swap is sought.
    draw
        Seed of the search.
    """
    cliques = greedy_swap(shares(labels), size, swaps, draw)
    members = [np.flatnonzero(cliques == c).tolist() for c in range(cliques.max() + 1)]
    matrix = metropolis_hastings(joined_cliques(members, between))
    return {"edges": matrix.edges, "weights": matrix.weights, "cliques": cliques}


def restore_d_cliques(n: int, arrays: Arrays, *, labels: str) -> Cliques:
    """Cliques that together have the labels of all, and few edges between (D-Cliques)."""
    check_nodes("d_cliques", n, len(arrays["cliques"]), labels)
    matrix = MixingMatrix(n, arrays["edges"], arrays["weights"])
    return Cliques((matrix,), arrays["cliques"])
