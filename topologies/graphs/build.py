"""Graphs by name: the draw, the redraws where it is disconnected, and the metadata of both."""

from __future__ import annotations

import random
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import networkx as nx
import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.graphs import families, files
from topologies.graphs.families import Family, check_count
from topologies.links import overlays
from topologies.names import find, from_text, parse_spec, values_of
from topologies.node_counts import node_count
from topologies.parameters import options_of
from topologies.schema import check_options

MAX_TRIES = 100

FAMILIES: dict[str, Family] = {
    "erdos_renyi": Family(families.erdos_renyi),
    "ring": Family(families.ring),
    "path": Family(families.path),
    "complete": Family(families.complete),
    "star": Family(families.star),
    "torus": Family(families.torus, families.count_torus),
    "hypercube": Family(families.hypercube, families.count_hypercube),
    "random_regular": Family(families.random_regular, families.count_random_regular),
    "small_world": Family(families.small_world, families.count_small_world),
    "barbell": Family(families.barbell, families.count_barbell),
    "exponential": Family(families.exponential),
    "tree": Family(families.tree),
    "geometric": Family(families.geometric),
    "cliques": Family(families.cliques),
    "karate": Family(families.karate, lambda n, options: 34),
    "davis": Family(families.davis, lambda n, options: 32),
    "florentine": Family(families.florentine, lambda n, options: 15),
    "mst": Family(overlays.mst_graph),
    "delta_mbst": Family(overlays.delta_mbst_graph),
    "edges": Family(files.edges, lambda n, options: int(options["nodes"])),
    "edge_list": Family(files.edge_list),
    "graphml": Family(files.graphml),
    "matrix": Family(files.matrix),
}


@dataclass(frozen=True, kw_only=True)
class Draw:
    """Options of every graph.

    Parameters
    ----------
    seed
        Seed of the draw.
    on_disconnected
        What to do with a disconnected draw.
    """

    seed: Annotated[int, Ge(0)] | None = None
    on_disconnected: Literal["resample", "error", "keep", "augment"] = "resample"


def build_graph(
    name: str,
    n: int | None = None,
    seed: int | None = None,
    *,
    on_disconnected: str = "resample",
    **params: Any,
) -> nx.Graph:
    """Return a graph of the named family on the nodes 0 .. n-1.

    The first draw of ``erdos_renyi`` is ``networkx.binomial_graph(n, p, seed)``. A disconnected
    draw is treated by ``on_disconnected``:

    * ``"resample"``: drawn again from the same stateful generator, at most ``MAX_TRIES`` times;
      this conditions the law of the graph on being connected;
    * ``"error"``: refused;
    * ``"keep"``: kept with a warning; gossip then averages within its components only;
    * ``"augment"``: joined by the fewest possible edges, counted in ``graph.graph["augmented"]``.

    Families and files without randomness cannot be resampled; a disconnected one is refused, as
    with ``"error"``.

    Parameters
    ----------
    name : str
        An entry of ``FAMILIES``, or ``package.module:object``, a function that returns a graph.
    n : int, optional
        The number of nodes; None where the parameters determine it.
    seed : int, optional
        The seed of the draw. Where None is given to a random family, a fresh one is drawn.
    on_disconnected : str, default 'resample'
        One of "resample", "error", "keep" and "augment".
    **params : Any
        The parameters of the family.

    Returns
    -------
    networkx.Graph
        The graph. ``graph.graph`` records ``family``, ``params`` (all of them, defaults included),
        ``seed`` (None for a family without randomness), ``tries`` and ``on_disconnected``.

    Raises
    ------
    TopologyError
        For an unknown family, a bad option, a size that does not exist, or if no draw is
        connected.

    Examples
    --------
    >>> graph = build_graph("erdos_renyi", 20, seed=1234, p=0.5)
    >>> graph.number_of_edges(), graph.graph["tries"]
    (102, 1)
    """
    family, values = _resolve(name, n, {**params, "seed": seed, "on_disconnected": on_disconnected})
    policy, seed = values.pop("on_disconnected"), values.pop("seed")
    if n is not None:
        values["n"] = int(n)
    if family.random and seed is None:
        seed = random.SystemRandom().randrange(2**32)
    generator = random.Random(seed)

    graph, tries = _draw(name, family, values, generator), 1
    while (
        family.random and policy == "resample" and tries < MAX_TRIES and not nx.is_connected(graph)
    ):
        graph, tries = _draw(name, family, values, generator), tries + 1

    values.pop("n", None)
    named = graph.graph.get("nodes in the file", len(graph))
    graph.graph.clear()
    graph.graph.update(
        family=name,
        params=values,
        seed=seed if family.random else None,
        tries=tries,
        on_disconnected=policy,
    )
    if not nx.is_connected(graph):
        graph = _treat_disconnected(graph, policy, named)
    return graph


def check_graph_parameters(name: str, n: int | None, params: Mapping[str, Any]) -> dict[str, Any]:
    """Check the parameters of a graph without building it.

    Parameters
    ----------
    name : str
        The family.
    n : int | None
        The number of nodes; None where the parameters determine it.
    params : Mapping[str, Any]
        The parameters of the family, and possibly ``seed`` and ``on_disconnected``.

    Returns
    -------
    dict of str to Any
        The parameters with the defaults filled in.

    Raises
    ------
    TopologyError
        As :func:`build_graph`, except for a draw that turns out disconnected.
    """
    return _resolve(name, n, params)[1]


def parse_graph(text: str, n: int | None = None) -> tuple[str, dict[str, Any]]:
    """Parse ``family:key=value,...`` into the arguments of :func:`build_graph`.

    Parameters
    ----------
    text : str
        The text.
    n : int, optional
        The number of nodes where neither the text nor its parameters say it.

    Returns
    -------
    tuple of str and dict
        The family and the arguments.

    Raises
    ------
    TopologyError
        If the text is malformed or names a graph that does not exist.

    Examples
    --------
    >>> name, arguments = parse_graph("erdos_renyi:n=100,p=0.5")
    >>> build_graph(name, seed=1, **arguments).number_of_nodes()
    100
    """
    name, words = words_of_graph(text)
    family = find(FAMILIES, "graph family", name)
    stated = words.pop("n", None)
    if stated is not None:
        n = node_count(name, from_text(stated, int))
    elif words and not family.needs_n:
        n = None  # which the options determine, as of a torus or a file
    arguments = _resolve(name, n, values_of({**family.parameters, **options_of(Draw)}, words))[1]
    if n is not None:
        arguments["n"] = n
    if "seed" not in words:
        del arguments["seed"]
    return name, arguments


def words_of_graph(text: str) -> tuple[str, dict[str, str]]:
    """Return the family and the parameters, still text, of a graph; those of a file have its path.

    Parameters
    ----------
    text : str
        The graph, or the path of a file of it.

    Returns
    -------
    tuple of str and dict
        The family and the parameters.

    Examples
    --------
    >>> words_of_graph("ring:n=4"), words_of_graph("w.csv")
    (('ring', {'n': '4'}), ('matrix', {'path': 'w.csv'}))
    """
    family = files.FAMILY_OF.get(Path(text).suffix)
    if family is not None and "=" not in text:
        return family, {"path": text}
    return parse_spec(text)


def _resolve(name: str, n: int | None, params: Mapping[str, Any]) -> tuple[Family, dict[str, Any]]:
    family = find(FAMILIES, "graph family", name)
    of_draw = options_of(Draw)
    options = {key: value for key, value in params.items() if key not in of_draw}
    drawn = {key: value for key, value in params.items() if key in of_draw}
    values = {**family.checked_options(name, options), **check_options(Draw, drawn, name)}
    check_count(name, family, n, values)
    return family, values


def _draw(name: str, family: Family, values: dict[str, Any], generator: random.Random) -> nx.Graph:
    graph = family.build(**values, **({"seed": generator} if family.random else {}))
    if family.custom:
        _check_own_graph(name, graph, values.get("n"))
    return graph


def _check_own_graph(name: str, graph: Any, n: int | None) -> None:
    """Check that a user's graph is undirected, on 0 .. n-1, and without self-loops."""
    if (
        not isinstance(graph, nx.Graph)
        or graph.is_directed()
        or graph.is_multigraph()
        or (n is not None and len(graph) != n)
        or set(graph) != set(range(len(graph)))
        or not graph
        or nx.number_of_selfloops(graph)
    ):
        nodes = "n-1" if n is None else n - 1
        raise TopologyError(
            f"{name} returned {graph}; it must return an undirected networkx.Graph on 0 .. {nodes} "
            "without self-loops"
        )


def _treat_disconnected(graph: nx.Graph, policy: str, named: int) -> nx.Graph:
    record = graph.graph
    sizes = sorted((len(part) for part in nx.connected_components(graph)), reverse=True)
    values = {"n": len(graph), **record["params"], "seed": record["seed"]}
    words = ", ".join(f"{key} = {value}" for key, value in values.items() if value is not None)
    text = f"{record['family']} with {words}"
    if policy == "augment":
        added = list(nx.k_edge_augmentation(graph, 1))
        graph.add_edges_from(added)
        record["augmented"] = len(added)
    elif policy == "keep":
        warnings.warn(
            f"{text} is disconnected: {len(sizes)} components, the largest of {sizes[0]}",
            stacklevel=3,
        )
    elif named < len(graph):
        raise TopologyError(
            f"{text}: the file names {named} nodes, but n, the number of clients of a run, is "
            f"{len(graph)}; allowed are n = {named}, a file with an edge of each node, or "
            "on_disconnected = keep or augment"
        )
    else:
        draws = f" after {record['tries']} draws" if record["tries"] > 1 else ""
        raise TopologyError(
            f"{text} is disconnected{draws} "
            f"({len(sizes)} components, the largest of {sizes[0]} nodes); allowed are a denser "
            "graph, another seed, or on_disconnected = keep or augment"
        )
    return graph


def edge_array(graph: nx.Graph) -> NDArray[np.int64]:
    """Return the edges of a graph in canonical order.

    Parameters
    ----------
    graph : networkx.Graph
        An undirected graph on 0 .. n-1.

    Returns
    -------
    ndarray of int64, shape (m, 2)
        I < j in each row, the rows in lexicographic order.

    Examples
    --------
    >>> edge_array(nx.Graph([(2, 1), (0, 2)])).tolist()
    [[0, 2], [1, 2]]
    """
    ends = np.fromiter(chain.from_iterable(graph.edges()), np.int64, 2 * graph.number_of_edges())
    edges = np.sort(ends.reshape(-1, 2), axis=1)
    return edges[np.lexsort((edges[:, 1], edges[:, 0]))]
