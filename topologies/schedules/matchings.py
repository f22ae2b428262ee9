"""Schedules of matchings: in each round a node exchanges with at most one neighbour.

Matchings come in turn from a colouring of the edges, at random as in randomised gossip (Boyd et al.
2006), or with the probabilities of MATCHA (Wang et al. 2019, eq. 6 and 7).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated

import networkx as nx
import numpy as np
from annotated_types import Gt, Le
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from topologies.graphs.build import edge_array
from topologies.matrix import MixingMatrix
from topologies.schedules.sequences import Arrays, Drawn, Periodic, identity
from topologies.weights.formulas import laplacian

Array = NDArray[np.float64]

TOLERANCE = 1e-3
MAX_STEPS = 300
CUTS_A_STEP = 4
STEP = 0.3


def edge_colours(graph: nx.Graph) -> NDArray[np.int64]:
    """Return a proper edge colouring: edges with a common node have different colours. There are
    at most as many colours as the largest degree plus one (Misra and Gries 1992, A constructive
    proof of Vizing's theorem).
    """
    edges = edge_array(graph)
    colours = max((degree for _, degree in graph.degree), default=0) + 1
    painting = _Painting([(1 << colours) - 1] * len(graph), [{} for _ in graph])
    for u, v in edges.tolist():
        fan = painting.fan(u, v)
        common = painting.free[u] & painting.free[fan[-1]]
        if not common:
            c, d = _lowest(painting.free[u]), _lowest(painting.free[fan[-1]])
            painting.flip(u, c, d)
            fan, common = painting.valid_part(u, fan, d), 1 << d
        painting.rotate(u, fan, _lowest(common))
    colour_of = [{v: c for c, v in at.items()} for at in painting.at]
    return np.array([colour_of[u][v] for u, v in edges.tolist()], dtype=np.int64)


@dataclass(frozen=True)
class _Painting:
    """A partial colouring: each node's free colours, as bits, and its neighbour by used colour."""

    free: list[int]
    at: list[dict[int, int]]

    def paint(self, u: int, v: int, c: int) -> None:
        """Give the edge between u and v the colour c."""
        self.at[u][c], self.at[v][c] = v, u
        self.free[u] ^= 1 << c
        self.free[v] ^= 1 << c

    def erase(self, u: int, c: int) -> None:
        """Remove the colour c at u from its edge."""
        v = self.at[u].pop(c)
        del self.at[v][c]
        self.free[u] ^= 1 << c
        self.free[v] ^= 1 << c

    def fan(self, u: int, v: int) -> list[int]:
        """Return neighbours of u, from v on: at each is free the colour of u's edge to the
        next.
        """
        fan, used = [v], 0
        while not self.free[fan[-1]] & self.free[u]:
            following = self.free[fan[-1]] & ~used
            if not following:
                break
            c = _lowest(following)
            used |= 1 << c
            fan.append(self.at[u][c])
        return fan

    def valid_part(self, u: int, fan: list[int], d: int) -> list[int]:
        """Return the fan up to its first node at which d is free."""
        colour_of = {w: c for c, w in self.at[u].items()}
        for position, w in enumerate(fan):
            if position and not self.free[fan[position - 1]] & (1 << colour_of[w]):
                break
            if self.free[w] & (1 << d):
                return fan[: position + 1]
        raise AssertionError("the path of the two colours has broken the fan")

    def flip(self, u: int, c: int, d: int) -> None:
        """Exchange c and d along the path of these colours from u, at which c is free."""
        edges = []
        node, colour = u, d
        while colour in self.at[node]:
            edges.append((node, self.at[node][colour], colour))
            node, colour = self.at[node][colour], c + d - colour
        for i, _, colour in edges:
            self.erase(i, colour)
        for i, j, colour in edges:
            self.paint(i, j, c + d - colour)

    def rotate(self, u: int, fan: list[int], c: int) -> None:
        """Move the colours of u's edges one back along the fan, and give c to the last edge."""
        colour_of = {w: colour for colour, w in self.at[u].items() if w in fan}
        colours = [colour_of[w] for w in fan[1:]]
        for colour in colours:
            self.erase(u, colour)
        for w, colour in zip(fan, [*colours, c], strict=True):
            self.paint(u, w, colour)


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def draw_matching(random: np.random.Generator, n: int, edges: NDArray[np.int64]) -> MixingMatrix:
    """Return the pairwise averages on a maximal matching, drawn by adding edges in random
    order.
    """
    free = np.ones(n, dtype=bool)
    chosen = []
    for e in random.permutation(len(edges)).tolist():
        i, j = edges[e]
        if free[i] and free[j]:
            free[i] = free[j] = False
            chosen.append(e)
    return MixingMatrix(n, edges[chosen], np.full(len(chosen), 0.5))


def prepare_matchings(graph: nx.Graph) -> Arrays:
    """Return the ``edges`` of a graph and their ``colours``."""
    return {"edges": edge_array(graph), "colours": edge_colours(graph)}


def restore_matchings(n: int, arrays: Arrays) -> Periodic:
    """The matchings of an edge colouring of the graph in turn; matched nodes average."""
    edges, colours = arrays["edges"], arrays["colours"]
    rounds = [
        MixingMatrix(n, edges[colours == c], np.full((colours == c).sum(), 0.5))
        for c in np.unique(colours)
    ]
    return Periodic(tuple(rounds) or (identity(n),))


def prepare_random_matching(graph: nx.Graph) -> Arrays:
    """Return the ``edges`` of a graph."""
    return {"edges": edge_array(graph)}


def restore_random_matching(n: int, seed: int, arrays: Arrays) -> Drawn:
    """A random maximal matching of the graph every round (randomised gossip, Boyd et al. 2006)."""
    return Drawn(n, seed, partial(draw_matching, n=n, edges=arrays["edges"]))


def activation_probabilities(
    n: int, edges: NDArray[np.int64], colours: NDArray[np.int64], budget: float
) -> Array:
    """Return p in [0, 1]^M, sum p <= budget M, that maximises the expected algebraic connectivity.
    The problem is to maximise l_2(sum_j p_j L_j) (eq. 6). l_2 is the least x'L(p)x over unit x
    orthogonal to 1, a minimum of linear functions of p.
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
    """Return E[W^2]."""
    mean = laplacian(n, edges, p[colours])
    spread = laplacian(n, edges, (p * (1 - p))[colours])
    return np.asarray(np.eye(n) - 2 * alpha * mean + alpha**2 * (mean @ mean + 2 * spread))


def best_alpha(n: int, edges: NDArray[np.int64], colours: NDArray[np.int64], p: Array) -> float:
    """Return the alpha that minimises ||E[W^2] - 11'/n|| (eq. 7), a convex function of alpha."""
    if not len(edges):
        return 0.0

    from scipy.optimize import minimize_scalar

    def contraction(alpha: float) -> float:
        square = mean_square(n, edges, colours, p, alpha) - 1 / n
        return float(np.linalg.eigvalsh(square)[-1])

    # Beyond 2 / l_max(E[L]) even the mean of W expands.
    top = 2 / np.linalg.eigvalsh(laplacian(n, edges, p[colours]))[-1]
    return float(minimize_scalar(contraction, bounds=(0, top), method="bounded").x)


def prepare_matcha(graph: nx.Graph, *, budget: Annotated[float, Gt(0), Le(1)] = 0.5) -> Arrays:
    """Return the matchings of a graph with their probabilities, and their weight ``alpha``.

    Parameters
    ----------
    budget
        Mean share of the matchings.
    """
    n, edges, colours = len(graph), edge_array(graph), edge_colours(graph)
    with threadpool_limits(1, user_api="blas"):
        p = activation_probabilities(n, edges, colours, budget)
        alpha = best_alpha(n, edges, colours, p)
    return {"edges": edges, "colours": colours, "probabilities": p, "alpha": np.array(alpha)}


def restore_matcha(n: int, seed: int, arrays: Arrays) -> Drawn:
    """Matchings of the graph, switched on at random within a budget (MATCHA, Wang et al. 2019).

    Self-weights may be negative.
    """
    edges, colours, p = arrays["edges"], arrays["colours"], arrays["probabilities"]
    alpha = float(arrays["alpha"])

    def draw(random: np.random.Generator) -> MixingMatrix:
        on = (random.random(len(p)) < p)[colours]
        return MixingMatrix(n, edges[on], np.full(int(on.sum()), alpha))

    return Drawn(n, seed, draw, mean_square=partial(mean_square, n, edges, colours, p, alpha))
