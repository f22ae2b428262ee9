"""Spectrum, SLEM, effective neighbours and diameter of matrices, schedules and graphs."""

from __future__ import annotations

import math

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from topologies.analysis.consensus import contraction
from topologies.graphs.build import edge_array
from topologies.matrix import MixingMatrix
from topologies.schedules.sequences import Schedule, as_schedule

Array = NDArray[np.float64]


def spectrum(matrix: MixingMatrix) -> Array:
    """Return the eigenvalues of a symmetric W, otherwise its singular values.

    Parameters
    ----------
    matrix : MixingMatrix
        The mixing matrix W.

    Returns
    -------
    ndarray of float64, shape (n,)
        The values in ascending order.

    Examples
    --------
    >>> from topologies import build_graph, mixing_matrix
    >>> spectrum(mixing_matrix(build_graph("complete", 3), "uniform")).round(12) + 0.0
    array([0., 0., 1.])
    """
    from scipy import linalg

    dense = matrix.to_dense()
    values = np.linalg.eigvalsh(dense) if matrix.symmetric else linalg.svdvals(dense)[::-1]
    return np.asarray(values, dtype=np.float64)


def slem(matrix: MixingMatrix) -> float:
    """Return ||W - 11'/n||_2, the factor by which one round contracts in the worst case.

    Of a symmetric W this is the second largest eigenvalue modulus. Where columns do not sum to one
    it is ||(I - 11'/n) W||_2, the same worst-case contraction of the distance from consensus.

    Parameters
    ----------
    matrix : MixingMatrix
        The mixing matrix W.

    Returns
    -------
    float
        The SLEM; 0 for one node.

    Raises
    ------
    TopologyError
        If Lanczos iterations do not converge on a matrix of more than 2000 nodes.

    Examples
    --------
    >>> from topologies import build_graph, mixing_matrix
    >>> round(slem(mixing_matrix(build_graph("ring", 4), "metropolis_hastings")), 12)
    0.333333333333
    """
    return contraction([matrix])


def effective_neighbours(source: MixingMatrix | Schedule, gamma: float = 0.9) -> float:
    """Return how many nodes' noise a node averages in a random walk with decay ``gamma``.

    Nodes update z <- W (sqrt(gamma) z + noise). The number is the stationary variance of a node
    without communication, 1 / (1 - gamma), divided by that with it: n for the complete graph, 1
    without any exchange. For symmetric W with eigenvalues l the latter is the mean of l^2 / (1 -
    gamma l^2) (Vogels, Hendrikx and Jaggi 2022, Beyond spectral gap, section 3). For schedules that
    are not static the covariance itself is iterated: over one period, or, if random, over ten times
    the rounds in which gamma^k falls below 1e-9.

    Parameters
    ----------
    source : MixingMatrix | Schedule
        The matrix or schedule.
    gamma : float, default 0.9
        The decay, in (0, 1).

    Returns
    -------
    float
        The effective number of neighbours.

    Examples
    --------
    >>> from topologies import build_graph, mixing_matrix
    >>> round(effective_neighbours(mixing_matrix(build_graph("complete", 5), "uniform")), 6)
    5.0
    """
    schedule = as_schedule(source)
    if schedule.period == 1 and schedule.symmetric:
        squares = spectrum(schedule.matrix(1)) ** 2
        return float(1 / (1 - gamma) / np.mean(squares / (1 - gamma * squares)))
    forgetting = math.ceil(math.log(1e-9) / math.log(gamma))
    observed = schedule.period or 10 * forgetting
    covariance = np.zeros((schedule.n, schedule.n))
    variance = 0.0
    for k in range(1, forgetting + observed + 1):
        w = schedule.matrix(k).to_sparse()
        covariance = w @ (gamma * covariance + np.eye(schedule.n))
        covariance = (w @ covariance.T).T
        if k > forgetting:
            variance += covariance.trace() / schedule.n / observed
    return float(1 / (1 - gamma) / variance)


def diameter(graph: nx.Graph) -> float:
    """Return the largest number of hops between two nodes.

    Parameters
    ----------
    graph : networkx.Graph
        An undirected graph on 0 .. n-1.

    Returns
    -------
    float
        The diameter; infinity if the graph is disconnected.

    Examples
    --------
    >>> diameter(nx.cycle_graph(6))
    3.0
    """
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import shortest_path

    n, edges = len(graph), edge_array(graph)
    adjacency = csr_array((np.ones(len(edges)), (edges[:, 0], edges[:, 1])), shape=(n, n))
    longest = 0.0
    for start in range(0, n, 512):
        sources = range(start, min(start + 512, n))
        hops = shortest_path(adjacency, directed=False, unweighted=True, indices=sources)
        longest = max(longest, float(hops.max()))
    return longest
