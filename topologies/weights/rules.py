"""Weight rules: from a graph to a mixing matrix, symmetric and doubly stochastic but by sizes."""

from __future__ import annotations

import warnings
from typing import Annotated

import networkx as nx
import numpy as np
from annotated_types import Ge, Gt, Le

from topologies.errors import TopologyError
from topologies.graphs.build import edge_array
from topologies.graphs.files import read_numbers
from topologies.matrix import IMPORT_TOLERANCE, MixingMatrix, at_most_one
from topologies.weights.fastest_mixing import fmmc
from topologies.weights.formulas import (
    best_constant_weights,
    by_size_weights,
    degrees_of,
    max_degree_weights,
    metropolis_hastings_weights,
)


def metropolis_hastings(graph: nx.Graph) -> MixingMatrix:
    """1 / (1 + the larger degree), with a positive self-weight at every node.

    Xiao, Boyd and Kim 2007 (Distributed average consensus with least-mean-square deviation),
    section 3.

    Parameters
    ----------
    graph : networkx.Graph
        An undirected graph on 0 .. n-1.

    Returns
    -------
    MixingMatrix
        The mixing matrix.

    Examples
    --------
    >>> metropolis_hastings(nx.star_graph(2)).weights.round(3).tolist()
    [0.333, 0.333]
    """
    n, edges = len(graph), edge_array(graph)
    return MixingMatrix(n, edges, metropolis_hastings_weights(n, edges))


def by_size(
    graph: nx.Graph, *, sizes: str | list[Annotated[float, Gt(0)]] | None = None
) -> MixingMatrix:
    """Metropolis-Hastings weights by which gossip keeps the mean weighted by sizes; directed.

    W_ij = min(1 / (1 + d_i), (s_j / s_i) / (1 + d_j)) for sizes s and degrees d, so that s_i W_ij =
    s_j W_ji: W is reversible, its stationary distribution is s / sum(s), and every node converges
    to the mean weighted by sizes. It is row-stochastic and self-adjoint in L2(s), as Liu et al.
    2025 (arXiv 2511.19513) ask of the W of unequal nodes; their own construction was not read.

    Parameters
    ----------
    sizes
        Sizes of the nodes, or a CSV file with a row for each, whose numbers are added (label
        counts); equal if left out, in runs the clients' training samples.
    """
    n, edges = len(graph), edge_array(graph)
    if sizes is None:
        return metropolis_hastings(graph)
    node_sizes = (
        read_numbers(sizes).sum(axis=1) if isinstance(sizes, str) else np.array(sizes, float)
    )
    if len(node_sizes) != n or not (np.isfinite(node_sizes) & (node_sizes > 0)).all():
        raise TopologyError(
            f"by_size needs a size above 0 for each of {n} nodes, but sizes holds "
            f"{len(node_sizes)}, "
            f"the least of them {node_sizes.min(initial=np.inf):g}"
        )
    if node_sizes.min() == node_sizes.max():
        return metropolis_hastings(graph)
    return MixingMatrix(n, *by_size_weights(n, edges, node_sizes), symmetric=False)


def max_degree(graph: nx.Graph) -> MixingMatrix:
    """1 / (1 + the largest degree of all).

    Parameters
    ----------
    graph : networkx.Graph
        An undirected graph on 0 .. n-1.

    Returns
    -------
    MixingMatrix
        The mixing matrix.
    """
    n, edges = len(graph), edge_array(graph)
    return MixingMatrix(n, edges, max_degree_weights(n, edges))


def best_constant(graph: nx.Graph) -> MixingMatrix:
    """The best equal weight, 2 / (l_2 + l_n); self-weights may be negative.

    l_1 <= ... <= l_n are the eigenvalues of the Laplacian; of a disconnected graph, the smallest
    nonzero one replaces l_2. A node of high degree may get a negative self-weight, which
    :meth:`MixingMatrix.validate` shows. Xiao and Boyd 2004 (Fast linear iterations for distributed
    averaging), section 4.1.

    Parameters
    ----------
    graph : networkx.Graph
        An undirected graph on 0 .. n-1.

    Returns
    -------
    MixingMatrix
        The mixing matrix.
    """
    n, edges = len(graph), edge_array(graph)
    components = nx.number_connected_components(graph)
    return MixingMatrix(n, edges, best_constant_weights(n, edges, components))


def uniform(graph: nx.Graph) -> MixingMatrix:
    """1 / (1 + degree), for regular graphs.

    Parameters
    ----------
    graph : networkx.Graph
        An undirected graph on 0 .. n-1.

    Returns
    -------
    MixingMatrix
        The mixing matrix.

    Raises
    ------
    TopologyError
        If the degrees differ, because the columns would not sum to one.
    """
    degrees = degrees_of(len(graph), edge_array(graph))
    if degrees.min() != degrees.max():
        raise TopologyError(
            f"uniform weights need a graph of equal degrees, but these go from {degrees.min()} "
            f"to {degrees.max()}; metropolis_hastings takes any graph"
        )
    return max_degree(graph)


def weights_of_file(graph: nx.Graph) -> MixingMatrix:
    """The weights of the file that the graph was read from."""
    edges = edge_array(graph)
    weights = [graph.edges[i, j].get("weight") for i, j in edges.tolist()]
    if None in weights:
        i, j = edges[weights.index(None)].tolist()
        raise TopologyError(
            f"given needs a weight on each edge, but the edge between {i} and {j} has none; "
            "they are read by the families edge_list, graphml and matrix"
        )
    loops = {k: loop for k, loop in graph.nodes(data="loop") if loop is not None}
    try:
        weights = [float(weight) for weight in weights]
        self_weights = {k: float(loop["weight"]) for k, loop in loops.items()}
    except (TypeError, ValueError) as error:
        raise TopologyError(f"given needs weights that are numbers: {error}") from None
    matrix = MixingMatrix(len(graph), edges, np.array(weights, dtype=np.float64))
    report = matrix.validate(IMPORT_TOLERANCE)
    if not report.ok:
        raise TopologyError(f"the given weights do not make a mixing matrix: {report}")
    for node, weight in self_weights.items():
        excess = weight - float(matrix.self_weights[node])
        if not abs(excess) <= IMPORT_TOLERANCE:
            line = f" on line {loops[node]['line']}" if "line" in loops[node] else ""
            raise TopologyError(
                f"given: with the self-weight {weight:g} of node {node}{line}, its weights sum to "
                f"{1 + excess:.6g}, but must sum to one"
            )
    return MixingMatrix(matrix.n, edges, at_most_one(matrix.n, edges, np.maximum(weights, 0.0)))


def fastest(
    graph: nx.Graph,
    *,
    tolerance: Annotated[float, Gt(0), Le(1)] = 1e-3,
    self_loops: bool = True,
    max_iterations: Annotated[int, Ge(1)] = 5000,
) -> MixingMatrix:
    """Fastest mixing Markov chain (Boyd et al. 2004): the smallest SLEM of all weights, certified.

    Parameters
    ----------
    tolerance
        Certified relative gap at which to stop.
    self_loops
        Whether a node may keep a part of its own value.
    max_iterations
        Iterations after which to stop without.
    """
    result = fmmc(graph, tolerance, self_loops=self_loops, max_iterations=max_iterations)
    certificate = {
        name: getattr(result, name)
        for name in ("lower_bound", "certified_gap", "iterations", "status")
    }
    if result.status == "max_iterations":
        warnings.warn(
            f"fmmc stopped after {max_iterations} iterations with a certified gap of "
            f"{result.certified_gap:.2g}, above the tolerance {tolerance:g}: raise max_iterations, "
            "or take best_constant or metropolis_hastings, which are quick for any number of nodes",
            stacklevel=2,
        )
    return MixingMatrix(len(graph), edge_array(graph), result.weights, info=certificate)
