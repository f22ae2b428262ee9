"""Weight rules: from a graph to a symmetric, doubly stochastic mixing matrix.

The matrix of a user's own weight rule.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any

import networkx as nx
import numpy as np

from topologies.graphs.build import edge_array
from topologies.inputs import TopologyError, cpu_seconds, within
from topologies.matrix import ACTIVE, IMPORT_TOLERANCE, MixingMatrix, at_most_one
from topologies.parameters import (
    Entry,
    OwnPartError,
    Parameter,
    call_own,
    find,
    kind_of,
    read_parameters,
)
from topologies.weights.fastest_mixing import fmmc
from topologies.weights.formulas import (
    best_constant_weights,
    degrees_of,
    max_degree_weights,
    metropolis_hastings_weights,
)


def own_matrix(
    name: str, rule: Callable[..., Any], graph: nx.Graph, options: Mapping[str, Any]
) -> MixingMatrix:
    """Return the matrix of a user's rule, which has weights on the edges of the graph alone."""
    found: Any = call_own(name, rule, "weights", {"graph": graph}, options)
    n, call = len(graph), f"{name.rpartition(':')[2]}(graph, **options)"

    def wrong(said: str) -> OwnPartError:
        return OwnPartError(f"{name} {said}{within(rule)}", "weights")

    is_array = isinstance(found, np.ndarray) or hasattr(found, "tocsr")
    if not is_array and not isinstance(found, MixingMatrix):
        raise wrong(
            f"returned {kind_of(found)}; {call} must return W, an array of shape {(n, n)}, or "
            "topologies.MixingMatrix(n, edges, weights)"
        )
    try:
        matrix = MixingMatrix.from_sparse(found) if is_array else found
    except (TypeError, ValueError) as error:
        raise wrong(f"returned an array that is no W: {error}; {call} must return one") from None
    if matrix.n != n:
        raise wrong(f"returned weights of {matrix.n} nodes for a graph of {n}")
    ends = np.sort(matrix.edges, axis=1) @ [n, 1]
    beside = ~np.isin(ends, edge_array(graph) @ [n, 1])
    far = np.flatnonzero(beside & (np.abs(matrix.weights) > IMPORT_TOLERANCE))
    if len(far):
        (i, j), weight = matrix.edges[far[0]].tolist(), matrix.weights[far[0]]
        raise wrong(
            f"gives nodes {i} and {j} the weight {weight:.3g}, but no edge of the graph joins "
            f"them; {call} must leave it 0"
        )
    return matrix.with_edges(~beside) if beside.any() else matrix


def metropolis_hastings(graph: nx.Graph) -> MixingMatrix:
    """Return W_ij = 1 / (1 + max(d_i, d_j)), with a positive self-weight at every node.

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


def max_degree(graph: nx.Graph) -> MixingMatrix:
    """Return W_ij = 1 / (1 + d_max) on every edge.

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
    """Return the equal weight on all edges with the smallest SLEM, 2 / (l_2 + l_n).

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
    """Return W_ij = 1 / (1 + d): each node averages itself and its neighbours equally.

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


def given(graph: nx.Graph) -> MixingMatrix:
    """Return the weights that the graph's edges have, as read from a file."""
    edges = edge_array(graph)
    weights = [graph.edges[i, j].get("weight") for i, j in edges.tolist()]
    if None in weights:
        i, j = edges[weights.index(None)].tolist()
        raise TopologyError(
            f"given needs a weight on each edge, but the edge between {i} and {j} has none; "
            "they are read by the families edge_list, graphml and matrix"
        )
    matrix = MixingMatrix(len(graph), edges, np.array(weights, dtype=np.float64))
    report = matrix.validate(IMPORT_TOLERANCE)
    if not report.ok:
        raise TopologyError(f"the given weights do not make a mixing matrix: {report}")
    return MixingMatrix(matrix.n, edges, at_most_one(matrix.n, edges, np.maximum(weights, 0.0)))


def _fastest(
    graph: nx.Graph, tolerance: float, self_loops: bool, max_iterations: int
) -> MixingMatrix:
    result = fmmc(graph, tolerance, self_loops=self_loops, max_iterations=max_iterations)
    certificate = {
        name: getattr(result, name)
        for name in ("lower_bound", "certified_gap", "iterations", "status")
    }
    return MixingMatrix(len(graph), edge_array(graph), result.weights, info=certificate)


WEIGHTS: dict[str, Entry] = {
    "fmmc": Entry(
        _fastest,
        "fastest mixing Markov chain: the smallest SLEM of all non-negative weights, certified",
        {
            "tolerance": Parameter(
                float,
                "certified relative gap at which to stop",
                default=1e-3,
                low=0,
                high=1,
                open_ends=("low",),
            ),
            "self_loops": Parameter(
                bool, "whether a node may keep a part of its own value", default=True
            ),
            "max_iterations": Parameter(
                int, "iterations after which to stop without", default=5000, low=1
            ),
        },
    ),
    "metropolis_hastings": Entry(metropolis_hastings, "1 / (1 + the larger degree)"),
    "max_degree": Entry(max_degree, "1 / (1 + the largest degree of all)"),
    "best_constant": Entry(best_constant, "the best equal weight; self-weights may be negative"),
    "uniform": Entry(uniform, "1 / (1 + degree), for regular graphs"),
    "given": Entry(given, "the weights of the file that the graph was read from"),
}


def mixing_matrix(graph: nx.Graph, weights: str = "fmmc", **options: Any) -> MixingMatrix:
    """Return the mixing matrix of a graph under the named rule.

    A matrix whose values alternate for ever between two sides, because no node has a self-weight
    and the graph is bipartite, is returned with a warning.

    Parameters
    ----------
    graph : networkx.Graph
        An undirected graph on 0 .. n-1.
    weights : str, default 'fmmc'
        An entry of ``WEIGHTS``, or ``package.module:object``, a function of the graph that returns
        a ``MixingMatrix``, or W as an array (n, n), dense or scipy sparse, with weights on the
        diagonal and on the edges alone.
    **options : Any
        The options of the rule.

    Returns
    -------
    MixingMatrix
        The matrix. Its ``info`` has the graph's metadata, the rule, its options, the CPU
        ``seconds`` and, for ``fmmc``, the certificate.

    Raises
    ------
    TopologyError
        For an unknown rule or option, or a graph to which the rule does not apply.

    Examples
    --------
    >>> mixing_matrix(nx.path_graph(3), "metropolis_hastings").self_weights.round(3).tolist()
    [0.667, 0.333, 0.667]
    """
    rule = find(WEIGHTS, "weight rule", weights)
    options = check_weights(weights, options)
    if set(graph) != set(range(len(graph))) or not graph or graph.is_directed():
        raise TopologyError(
            "the graph must be undirected with nodes 0 .. n-1, as build_graph makes it"
        )
    start = cpu_seconds()
    if rule.parameters is None:
        matrix = own_matrix(weights, rule.build, graph, options)
    else:
        matrix = rule.build(graph, **options)
    if _swaps_sides(matrix):
        warnings.warn(
            f"{weights} on this bipartite graph leaves no node a part of its own value: the two "
            "sides swap values for ever, and gossip does not converge",
            stacklevel=2,
        )
    info = dict(graph.graph, weights=weights, weight_options=options, seconds=cpu_seconds() - start)
    return MixingMatrix(
        matrix.n, matrix.edges, matrix.weights, matrix.symmetric, {**info, **matrix.info}
    )


def check_weights(weights: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Check a weight rule and its options.

    Parameters
    ----------
    weights : str
        The rule.
    options : Mapping[str, Any]
        Its options.

    Returns
    -------
    dict of str to Any
        The options with the defaults filled in.

    Raises
    ------
    TopologyError
        For an unknown rule or option, or a value out of range.
    """
    return read_parameters(weights, find(WEIGHTS, "weight rule", weights), options)


def _swaps_sides(matrix: MixingMatrix) -> bool:
    """Return whether every step crosses between the sides of the graph: -1 is an eigenvalue."""
    if matrix.n == 1 or np.abs(matrix.self_weights).max() > ACTIVE:
        return False
    used = nx.empty_graph(matrix.n)
    used.add_edges_from(matrix.pruned().edges.tolist())
    return bool(nx.is_bipartite(used))
