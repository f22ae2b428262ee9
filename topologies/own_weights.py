"""The matrix of a user's own weight rule."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import networkx as nx
import numpy as np

from topologies.graphs import edge_array
from topologies.matrix import MixingMatrix
from topologies.own_functions import call_own, kind_of
from topologies.parameters import OwnPartError
from topologies.places import within
from topologies.validation import IMPORT_TOLERANCE


def own_matrix(
    name: str, rule: Callable[..., Any], graph: nx.Graph, options: Mapping[str, Any]
) -> MixingMatrix:
    """Return the matrix of a user's rule, which has weights on the edges of the graph alone.

    Parameters
    ----------
    name : str
        The rule, ``package.module:object``.
    rule : Callable[..., Any]
        A function of the graph. It returns a ``MixingMatrix``, or W as an array (n, n), dense or
        scipy sparse.
    graph : networkx.Graph
        An undirected graph on 0 .. n-1.
    options : Mapping[str, Any]
        The options of the rule.

    Returns
    -------
    MixingMatrix
        The matrix. Entries of an array that rounding has left beside the edges are zero.

    Raises
    ------
    OwnPartError
        If the rule fails, or returns something else.

    Examples
    --------
    >>> lazy = lambda graph: np.array([[0.75, 0.25], [0.25, 0.75]])
    >>> own_matrix("mine:lazy", lazy, nx.path_graph(2), {}).weights
    array([0.25])
    """
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
