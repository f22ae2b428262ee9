"""MATCHA: matchings switched on at random, within a budget, where they connect the graph most.

Wang, Sahu, Yang, Joshi and Kar 2019 (MATCHA: speeding up decentralized SGD via matching
decomposition sampling). The graph is split into M matchings with Laplacians L_j. In each round
matching j takes part with probability p_j, independently, and W = I - alpha sum_j B_j L_j.
"""

from __future__ import annotations

from functools import partial

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog, minimize_scalar

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
    """Return p in [0, 1]^M, sum p <= budget M, with the largest algebraic connectivity on average.

    maximise l_2(sum_j p_j L_j) (eq. 6), the least of x'L(p)x over unit x orthogonal to 1 and so the
    least of linear functions of p: by cutting planes, which also bound how far from the best p is.
    ``TOLERANCE`` is that relative distance. Each step looks between the best p so far and the best
    of the linear program, which takes far fewer steps than looking at the latter.
    """
    count = int(colours.max(initial=-1)) + 1
    if budget >= 1 or count == 0:
        return np.ones(count)
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
    """Return E[W^2], float64 [n, n].

    E[L^2] = E[L]^2 + 2 sum_j p_j (1 - p_j) L_j, because a matching has L_j^2 = 2 L_j.
    """
    mean = laplacian(n, edges, p[colours])
    spread = laplacian(n, edges, (p * (1 - p))[colours])
    return np.asarray(np.eye(n) - 2 * alpha * mean + alpha**2 * (mean @ mean + 2 * spread))


def best_alpha(n: int, edges: NDArray[np.int64], colours: NDArray[np.int64], p: Array) -> float:
    """Return the alpha that minimises ||E[W^2] - 11'/n|| (eq. 7), a convex function of it."""
    if not len(edges):
        return 0.0

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
    """The schedule of independently drawn matchings; a node's own weight may be negative."""
    draw = partial(_draw, n=n, edges=edges, colours=colours, p=probabilities, alpha=alpha)
    square = partial(mean_square, n, edges, colours, probabilities, alpha)
    return Drawn(n, seed, draw, mean_square=square)


def prepare_matcha(graph: nx.Graph, rule: object, budget: float) -> Arrays:
    """Return the edges, their colours, the probabilities of the colours, and alpha."""
    n, edges, colours = len(graph), edge_array(graph), edge_colours(graph)
    with one_thread():
        p = activation_probabilities(n, edges, colours, budget)
        alpha = best_alpha(n, edges, colours, p)
    return {"edges": edges, "colours": colours, "probabilities": p, "alpha": np.array(alpha)}


def restore_matcha(n: int, seed: int, arrays: Arrays, budget: float) -> Drawn:
    """Return the schedule of ``prepare_matcha``'s arrays."""
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
