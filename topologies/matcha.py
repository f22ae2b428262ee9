"""MATCHA: matchings activated at random, within a budget, to maximise the connectivity.

Wang, Sahu, Yang, Joshi and Kar 2019 (MATCHA: speeding up decentralized SGD via matching
decomposition sampling). The graph is split into M matchings with Laplacians L_j. In each round
matching j is activated with probability p_j, independently, and W = I - alpha sum_j B_j L_j.
"""

from __future__ import annotations

from functools import partial

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from topologies.formulas import laplacian
from topologies.graphs import edge_array
from topologies.matchings import edge_colours
from topologies.matrix import MixingMatrix
from topologies.sequences import Arrays, Drawn
from topologies.threads import one_thread

Array = NDArray[np.float64]

TOLERANCE = 1e-3
MAX_STEPS = 300
CUTS_A_STEP = 4
STEP = 0.3


def activation_probabilities(
    n: int, edges: NDArray[np.int64], colours: NDArray[np.int64], budget: float
) -> Array:
    """Return p in [0, 1]^M, sum p <= budget M, that maximises the expected algebraic connectivity.

    The problem is to maximise l_2(sum_j p_j L_j) (eq. 6). l_2 is the least x'L(p)x over unit x
    orthogonal to 1, a minimum of linear functions of p. Cutting planes solve it and bound how far
    from optimal p is. ``TOLERANCE`` is that relative distance. Each step evaluates a point between
    the best p so far and the optimum of the linear program, which takes far fewer steps than
    evaluating the latter.

    Parameters
    ----------
    n : int
        The number of nodes.
    edges : ndarray of int64, shape (m, 2)
        The edges.
    colours : ndarray of int64, shape (m,)
        The matching of each edge, 0 .. M-1.
    budget : float
        The mean share of the matchings that are active, in (0, 1].

    Returns
    -------
    ndarray of float64, shape (M,)
        The probabilities.
    """
    count = int(colours.max(initial=-1)) + 1
    if budget >= 1 or count == 0:
        return np.ones(count)
    # Imported when it is needed, since it takes half as long as the whole package.
    from scipy.optimize import linprog

    p = np.full(count, budget)
    best, best_p, bound = 0.0, p, np.inf
    cuts: list[Array] = []
    for _ in range(MAX_STEPS):
        values, vectors = np.linalg.eigh(laplacian(n, edges, p[colours]))
        if values[1] > best:
            best, best_p = values[1], p
        if bound - best <= TOLERANCE * best:
            break
        for x in vectors.T[1 : 1 + CUTS_A_STEP]:
            squares = (x[edges[:, 0]] - x[edges[:, 1]]) ** 2
            cuts.append(np.bincount(colours, squares, count).astype(np.float64))
        rows = np.array(cuts)
        program = linprog(
            np.append(np.zeros(count), -1.0),
            A_ub=np.block(
                [[-rows, np.ones((len(rows), 1))], [np.ones((1, count)), np.zeros((1, 1))]]
            ),
            b_ub=np.append(np.zeros(len(rows)), budget * count),
            bounds=[(0, 1)] * count + [(0, None)],
            method="highs",
        )
        bound = program.x[count]
        p = best_p + STEP * (np.clip(program.x[:count], 0, 1) - best_p)
    return best_p


def mean_square(
    n: int, edges: NDArray[np.int64], colours: NDArray[np.int64], p: Array, alpha: float
) -> Array:
    """Return E[W^2].

    E[L^2] = E[L]^2 + 2 sum_j p_j (1 - p_j) L_j, because a matching has L_j^2 = 2 L_j.

    Parameters
    ----------
    n : int
        The number of nodes.
    edges : ndarray of int64, shape (m, 2)
        The edges.
    colours : ndarray of int64, shape (m,)
        The matching of each edge.
    p : ndarray of float64, shape (M,)
        The probabilities.
    alpha : float
        The weight of each active edge.

    Returns
    -------
    ndarray of float64, shape (n, n)
        E[W^2].
    """
    mean = laplacian(n, edges, p[colours])
    spread = laplacian(n, edges, (p * (1 - p))[colours])
    return np.asarray(np.eye(n) - 2 * alpha * mean + alpha**2 * (mean @ mean + 2 * spread))


def best_alpha(n: int, edges: NDArray[np.int64], colours: NDArray[np.int64], p: Array) -> float:
    """Return the alpha that minimises ||E[W^2] - 11'/n|| (eq. 7), a convex function of alpha.

    Parameters
    ----------
    n : int
        The number of nodes.
    edges : ndarray of int64, shape (m, 2)
        The edges.
    colours : ndarray of int64, shape (m,)
        The matching of each edge.
    p : ndarray of float64, shape (M,)
        The probabilities.

    Returns
    -------
    float
        The weight of each active edge; 0 for a graph without edges.
    """
    if not len(edges):
        return 0.0

    from scipy.optimize import minimize_scalar

    def contraction(alpha: float) -> float:
        square = mean_square(n, edges, colours, p, alpha) - 1 / n
        return float(np.linalg.eigvalsh(square)[-1])

    # Beyond 2 / l_max(E[L]) even the mean of W expands.
    top = 2 / np.linalg.eigvalsh(laplacian(n, edges, p[colours]))[-1]
    return float(minimize_scalar(contraction, bounds=(0, top), method="bounded").x)


def matcha(
    n: int,
    edges: NDArray[np.int64],
    colours: NDArray[np.int64],
    probabilities: Array,
    alpha: float,
    seed: int,
) -> Drawn:
    """Return the schedule of independently activated matchings; self-weights may be negative.

    Parameters
    ----------
    n : int
        The number of nodes.
    edges : ndarray of int64, shape (m, 2)
        The edges.
    colours : ndarray of int64, shape (m,)
        The matching of each edge.
    probabilities : ndarray of float64, shape (M,)
        The probability of each matching.
    alpha : float
        The weight of each active edge.
    seed : int
        The seed of all draws.

    Returns
    -------
    Drawn
        The random schedule.
    """
    draw = partial(_draw, n=n, edges=edges, colours=colours, p=probabilities, alpha=alpha)
    square = partial(mean_square, n, edges, colours, probabilities, alpha)
    return Drawn(n, seed, draw, mean_square=square)


def prepare_matcha(graph: nx.Graph, rule: object, budget: float) -> Arrays:
    """Compute what :func:`restore_matcha` needs.

    Parameters
    ----------
    graph : networkx.Graph
        The graph on 0 .. n-1.
    rule : object
        Not used: MATCHA sets its own weights.
    budget : float
        The mean share of the matchings that are active, in (0, 1].

    Returns
    -------
    mapping of str to ndarray
        ``edges``, their ``colours``, ``probabilities`` and ``alpha``.
    """
    n, edges, colours = len(graph), edge_array(graph), edge_colours(graph)
    with one_thread():
        p = activation_probabilities(n, edges, colours, budget)
        alpha = best_alpha(n, edges, colours, p)
    return {"edges": edges, "colours": colours, "probabilities": p, "alpha": np.array(alpha)}


def restore_matcha(n: int, seed: int, arrays: Arrays, budget: float) -> Drawn:
    """Return the schedule of the arrays of :func:`prepare_matcha`.

    Parameters
    ----------
    n : int
        The number of nodes.
    seed : int
        The seed of all draws.
    arrays : mapping of str to ndarray
        The arrays.
    budget : float
        Not used: the probabilities contain it.

    Returns
    -------
    Drawn
        The random schedule.
    """
    edges, colours, p = arrays["edges"], arrays["colours"], arrays["probabilities"]
    return matcha(n, edges, colours, p, float(arrays["alpha"]), seed)


def _draw(
    random: np.random.Generator,
    n: int,
    edges: NDArray[np.int64],
    colours: NDArray[np.int64],
    p: Array,
    alpha: float,
) -> MixingMatrix:
    on = (random.random(len(p)) < p)[colours]
    return MixingMatrix(n, edges[on], np.full(int(on.sum()), alpha))
