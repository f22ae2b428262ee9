"""Weight rules by name, and the mixing matrices that they make of graphs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import networkx as nx
import numpy as np

from topologies.cpu_time import cpu_seconds
from topologies.errors import TopologyError
from topologies.graphs.build import edge_array
from topologies.matrix import IMPORT_TOLERANCE, MixingMatrix
from topologies.names import Entry, find
from topologies.weights import rules

WEIGHTS: dict[str, Entry] = {
    "fmmc": Entry(rules.fastest),
    "metropolis_hastings": Entry(rules.metropolis_hastings),
    "by_size": Entry(rules.by_size),
    "max_degree": Entry(rules.max_degree),
    "best_constant": Entry(rules.best_constant),
    "uniform": Entry(rules.uniform),
    "given": Entry(rules.weights_of_file),
}


def _own_matrix(name: str, returned: Any, graph: nx.Graph) -> MixingMatrix:
    """Return what a user's rule has returned; its weights are on the edges of the graph alone."""
    try:
        matrix = (
            returned if isinstance(returned, MixingMatrix) else MixingMatrix.from_sparse(returned)
        )
    except TopologyError as error:
        raise TopologyError(f"{name}: {error}") from None
    n = len(graph)
    if matrix.n != n:
        raise TopologyError(f"{name} returned weights of {matrix.n} nodes for a graph of {n}")
    ends = np.sort(matrix.edges, axis=1) @ [n, 1]
    off_graph = ~np.isin(ends, edge_array(graph) @ [n, 1])
    far = np.flatnonzero(off_graph & (np.abs(matrix.weights) > IMPORT_TOLERANCE))
    if len(far):
        (i, j), weight = matrix.edges[far[0]].tolist(), matrix.weights[far[0]]
        raise TopologyError(
            f"{name} gives nodes {i} and {j} the weight {weight:.3g}, but no edge of the graph "
            "joins them"
        )
    return matrix.with_edges(~off_graph) if off_graph.any() else matrix


def mixing_matrix(graph: nx.Graph, weights: str = "fmmc", **options: Any) -> MixingMatrix:
    """Return the mixing matrix of a graph under the named rule.

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
    options = rule.checked_options(weights, options)
    if set(graph) != set(range(len(graph))) or not graph or graph.is_directed():
        raise TopologyError(
            "the graph must be undirected with nodes 0 .. n-1, as build_graph makes it"
        )
    start = cpu_seconds()
    matrix = rule.build(graph, **options)
    if rule.custom:
        matrix = _own_matrix(weights, matrix, graph)
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
    return find(WEIGHTS, "weight rule", weights).checked_options(weights, options)
