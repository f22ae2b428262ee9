"""Mixing matrices made for clients whose labels are unlike, from how many of each they have.

STL-FW (Le Bars, Bellet, Tommasi, Lavoie and Kermarrec 2023, Refined convergence and topology
learning for decentralized SGD with heterogeneous data, Alg. 2) looks for sparse W with which every
neighbourhood has nearly the labels of all. With Pi[i, c] the share of class c at node i,

    g(W) = (1/n) ||W Pi - (11'/n) Pi||_F^2 + (lambda / n) ||W - 11'/n||_F^2

is minimised over doubly stochastic W by the Frank-Wolfe method from W = I. Each of its steps moves
towards a permutation, which adds at most one neighbour to each node:

    P = argmin over permutations of <P, grad g(W)>
    W <- (1 - gamma) W + gamma P, with the gamma in [0, 1] that minimises g
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topologies.catalogue import check_memory
from topologies.files import read_numbers
from topologies.matrix import MixingMatrix
from topologies.parameters import TopologyError
from topologies.sequences import Arrays, Static

Array = NDArray[np.float64]

MATRICES = 4
"""Dense matrices of nodes x nodes that the search holds."""


def shares(path: str) -> Array:
    """Return the share of each label at each node, float64 (nodes, classes), from a file of counts.

    Parameters
    ----------
    path : str
        CSV, a row of counts for each node.

    Raises
    ------
    TopologyError
        If the file cannot be read, a count is negative, or a node has none.
    """
    counts = read_numbers(path)
    if counts.min(initial=0) < 0 or not np.all(counts.sum(axis=1) > 0):
        raise TopologyError(
            f"{path!r} does not hold label counts: they must be at least 0, and above 0 for some "
            "label of every node"
        )
    return np.asarray(counts / counts.sum(axis=1, keepdims=True))


def stl_fw(labels: Array, neighbours: int, balance: float = 0.1) -> MixingMatrix:
    """Return the W of STL-FW; directed and doubly stochastic.

    Parameters
    ----------
    labels : ndarray of float64, shape (n, classes)
        Pi, the share of each class at each node.
    neighbours : int
        Steps of Frank-Wolfe, and the most values that a node sends and receives.
    balance : float, default 0.1
        lambda, the weight of mixing as such against that of labels.

    Returns
    -------
    MixingMatrix
        W; ``info`` has the ``objective`` g.

    Examples
    --------
    >>> pairs = np.repeat(np.eye(2), 2, axis=0)  # two nodes of each label
    >>> bool(np.allclose(stl_fw(pairs, 1, balance=0.0).to_dense() @ pairs, 0.5))
    True
    """
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
    graph: object, rule: object, labels: str, neighbours: int, balance: float
) -> Arrays:
    """Return what :func:`restore_stl_fw` needs: ``edges``, ``weights`` and ``nodes``.

    Parameters
    ----------
    graph, rule : object
        Not used: the edges follow from the labels.
    labels : str
        The file of label counts.
    neighbours : int
        As for :func:`stl_fw`.
    balance : float
        As for :func:`stl_fw`.

    Returns
    -------
    mapping of str to ndarray
        The arrays.
    """
    made = stl_fw(shares(labels), neighbours, balance)
    return {"edges": made.edges, "weights": made.weights, "nodes": np.array([made.n])}


def restore_stl_fw(
    n: int, seed: int, arrays: Arrays, labels: str, neighbours: int, balance: float
) -> Static:
    """Return the schedule of the arrays of :func:`prepare_stl_fw`.

    Parameters
    ----------
    n : int
        The number of nodes.
    seed : int
        Not used: nothing is drawn.
    arrays : mapping of str to ndarray
        The arrays.
    labels : str
        The file, for messages.
    neighbours, balance
        Not used: the arrays have what follows from them.

    Returns
    -------
    Static
        The schedule.

    Raises
    ------
    TopologyError
        If the file has another number of nodes.
    """
    nodes = int(arrays["nodes"][0])
    if nodes != n:
        raise TopologyError(f"stl_fw: {labels!r} has label counts of {nodes} nodes, not of {n}")
    return Static(MixingMatrix(n, arrays["edges"], arrays["weights"], symmetric=False))
