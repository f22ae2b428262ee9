"""The fastest mixing Markov chain: the symmetric weights with the smallest SLEM, certified.

    minimise ||W - J||_2  over  W = W', W >= 0, W 1 = 1, W_ij = 0 where {i, j} is not an edge;
    J = 1 1' / n

(Boyd, Diaconis and Xiao 2004, Fastest mixing Markov chain on a graph, section 1.3). Where symmetry
gives the solution, ``symmetric`` finds it. Elsewhere the alternating direction method of
multipliers does (Boyd, Parikh, Chu, Peleato and Eckstein 2011), on the splitting W - J = Z with the
constraints on W and the norm on Z. On large sparse graphs with self-loops it is the method of
``primal_dual``, which needs no dense matrix but for the certificate. Multipliers of either method,
made feasible, give the lower bound of ``candidates``.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from topologies.cpu_time import cpu_seconds
from topologies.errors import TopologyError
from topologies.graphs.build import edge_array
from topologies.matrix import at_most_one
from topologies.weights.candidates import best_of, feasible_bound, formula_rules, slem_of
from topologies.weights.formulas import metropolis_hastings_weights
from topologies.weights.patterns import Pattern
from topologies.weights.primal_dual import sparse_iterates
from topologies.weights.projections import (
    ROW_TOLERANCE,
    Multipliers,
    project_admissible,
    project_nuclear,
)
from topologies.weights.symmetric import symmetric_solution

Array = NDArray[np.float64]

# The first iterations gain most: they are checked twice as often, and aim for a tenth of the gap.
FIRST_ITERATIONS = 60

# How far a step goes beyond the iterate: the method converges below 2 (Boyd et al. 2011, section
# 3.4.3).
DENSE_OVER_RELAXATION = 1.9

# The ratio of the residuals from which the penalty is doubled or halved (Boyd et al. 2011, section
# 3.4.1, where it is 10).
IMBALANCE = 1.5

# Within how many times the gap at which to stop, and from how many nodes on, a look between two
# checks is worth its eigenvalues: iterations cost more than they do.
NEARLY, LARGE = 5.0, 500

# From how many nodes on, and up to which share of all pairs as edges, the method is primal-dual.
SPARSE_NODES, SPARSE_DENSITY = 500, 0.05

# How many tolerances an estimated gap may be for a certificate to be tried, and how many times the
# iterations until the next one have been done by then.
LIKELY, PATIENCE = 1.7, 10

# The gap slem - lower_bound below which a certificate is rounding: rows of the weights sum to one
# within as much, so the SLEM is not known any better.
GAP_FLOOR = ROW_TOLERANCE


@dataclass(frozen=True)
class FmmcResult:
    """Fastest mixing weights with their certificate.

    Attributes
    ----------
    weights : ndarray of float64, shape (m,)
        In the order of ``edge_array(graph)``.
    slem : float
        The second largest eigenvalue modulus of the matrix; 1 if the graph is disconnected.
    lower_bound : float
        A lower bound on the SLEM of all admissible matrices.
    certified_gap : float
        (slem - lower_bound) / slem, or 0 where slem is 0.
    iterations : int
        Iterations of the alternating direction or primal-dual method, summed over components.
    status : str
        "closed_form", "converged", "max_iterations", or "rounding" where the gap came to
        ``GAP_FLOOR`` (1e-11), but not to a smaller tolerance.
    seconds : float
        CPU seconds.
    """

    weights: Array
    slem: float
    lower_bound: float
    certified_gap: float
    iterations: int
    status: str
    seconds: float


def fmmc(
    graph: nx.Graph, tolerance: float = 1e-3, *, self_loops: bool = True, max_iterations: int = 5000
) -> FmmcResult:
    """Return the fastest mixing weights of a graph on 0 .. n-1, component by component.

    Parameters
    ----------
    graph : networkx.Graph
        An undirected graph without self-loops.
    tolerance : float, default 0.001
        The certified relative gap at which to stop; where mixing is slow, also a tenth of the
        relative gap to the best spectral gap 1 - slem. The first iterations, which gain most, aim
        for a tenth of it. A gap of ``GAP_FLOOR`` ends the search in any case.
    self_loops : bool, default True
        Whether nodes may have self-weights. Without them (as in the published D-FedEM code) the
        diagonal is zero, mixing is slower, and bipartite graphs do not mix at all.
    max_iterations : int, default 5000
        The iterations after which to return the best weights found, with their certificate.

    Returns
    -------
    FmmcResult
        The weights and the certificate.

    Raises
    ------
    TopologyError
        If ``self_loops`` is false and the graph admits no such weights.

    Examples
    --------
    >>> result = fmmc(nx.cycle_graph(4))
    >>> round(result.slem, 6), result.status
    (0.333333, 'closed_form')
    """
    start = cpu_seconds()
    edges = edge_array(graph)
    weights = np.zeros(len(edges))
    parts = []
    for component in nx.connected_components(graph):
        nodes = np.array(sorted(component))
        inside = np.isin(edges[:, 0], nodes)
        within = np.searchsorted(nodes, edges[inside])
        with threadpool_limits(1, user_api="blas"):
            part = _fastest_mixing_solve(
                Pattern(len(nodes), within, self_loops), tolerance, max_iterations
            )
        weights[inside] = part.weights
        parts.append(part)
    # Several components never agree with each other, whatever the weights.
    slem, bound = (parts[0].slem, parts[0].bound) if len(parts) == 1 else (1.0, 1.0)
    return FmmcResult(
        weights,
        slem,
        bound,
        _relative(slem, bound),
        sum(part.iterations for part in parts),
        max(
            (part.status for part in parts),
            key=("closed_form", "converged", "rounding", "max_iterations").index,
        ),
        cpu_seconds() - start,
    )


@dataclass
class _Certified:
    """The best weights that were tried, and the largest lower bound of the SLEM of any."""

    pattern: Pattern
    weights: Array
    rules: list[tuple[float, Array]]
    slem: float = np.inf
    bound: float = 0.0
    iterations: int = 0
    status: str = "max_iterations"

    def improve(self, weights: Array, y: Array, z: Array) -> None:
        """Try weights, and a dual point of the bound."""
        candidate = at_most_one(self.pattern.n, self.pattern.edges, weights)
        slem = slem_of(self.pattern, candidate)
        if slem < self.slem:
            self.slem, self.weights = slem, candidate
        best = best_of(self.pattern, self.slem, self.weights, self.rules)
        self.slem, self.weights, self.rules = best
        self.bound = min(max(self.bound, feasible_bound(self.pattern, y, z)), self.slem)

    @property
    def gap(self) -> float:
        return self.slem - self.bound

    def stopping_gap(self, tolerance: float) -> float:
        """Return the gap at which to stop."""
        return max(GAP_FLOOR, tolerance * min(self.slem, 10 * (1 - self.bound)))

    def ended(self, iterations: int, tolerance: float) -> _Certified:
        """Return what was found, where the gap is small enough."""
        self.iterations = iterations
        self.status = "converged" if self.gap <= tolerance * self.slem else "rounding"
        return self


def _fastest_mixing_solve(pattern: Pattern, tolerance: float, max_iterations: int) -> _Certified:
    if pattern.self_loops:
        closed_form = symmetric_solution(pattern)
        if closed_form is not None:
            best = _Certified(pattern, closed_form[0], [], status="closed_form")
            best.improve(*closed_form)
            if _relative(best.slem, best.bound) < 1e-9:
                return best
        rules = formula_rules(pattern)
        if pattern.n >= SPARSE_NODES and 2 * len(pattern.i) <= SPARSE_DENSITY * pattern.n**2:
            best = _Certified(pattern, np.zeros(len(pattern.edges)), rules)
            return _sparse(best, tolerance, max_iterations)
    else:
        rules = []
        _check_zero_diagonal(pattern)
    weights = metropolis_hastings_weights(pattern.n, pattern.edges)
    return _alternate(_Certified(pattern, weights, rules), tolerance, max_iterations)


def _check_zero_diagonal(pattern: Pattern) -> None:
    """Refuse a graph whose double cover has no perfect matching: only then are there no weights."""
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import maximum_bipartite_matching

    n, rows, cols = pattern.n, np.append(pattern.i, pattern.j), np.append(pattern.j, pattern.i)
    cover = csr_array((np.ones(len(rows), dtype=np.int8), (rows, cols)), shape=(n, n))
    if not len(rows) or (maximum_bipartite_matching(cover) < 0).any():
        raise TopologyError(
            "fmmc without self-loops has no solution on this graph: no weights on its edges alone "
            f"sum to one at every node of a component of {n}; self_loops=true always has one"
        )


def _alternate(best: _Certified, tolerance: float, max_iterations: int) -> _Certified:
    pattern, weights, close = best.pattern, best.weights, False
    n = pattern.n
    z = pattern.dense(weights, 1 - pattern.node_sums(weights)) - 1 / n
    u = np.zeros((n, n))
    multipliers, threshold = Multipliers(np.zeros(n)), None
    penalty = 1.0
    for iteration in range(1, max_iterations + 1):
        w, loops, multipliers = project_admissible(z - u + 1 / n, pattern, multipliers)
        deviation = pattern.dense(w, loops) - 1 / n
        relaxed = DENSE_OVER_RELAXATION * deviation + (1 - DENSE_OVER_RELAXATION) * z + u
        checking = _is_check(iteration) or iteration == max_iterations
        u, threshold = project_nuclear(relaxed, 1 / penalty, None if checking else threshold)
        previous, z = z, relaxed - u
        if checking or (close and n >= LARGE and _is_half_way(iteration)):
            best.improve(w, penalty * u, 2 * penalty * multipliers.values)
            stopping_gap = best.stopping_gap(
                tolerance / 10 if iteration < FIRST_ITERATIONS else tolerance
            )
            close = best.gap <= NEARLY * stopping_gap
            if best.gap <= stopping_gap:
                return best.ended(iteration, tolerance)
        if iteration in (3, 5, 10, 20):
            # At the solution of every graph tried, this balances the two residuals.
            factor = 1 / (threshold.count * threshold.level or 1) / penalty
        elif checking and iteration <= max_iterations // 2:
            factor = _balance(deviation, z, previous, u)
        else:
            continue
        penalty *= factor
        u /= factor
        multipliers = multipliers.scaled(1 / factor)
    best.iterations = max_iterations
    return best


def _sparse(best: _Certified, tolerance: float, max_iterations: int) -> _Certified:
    due, likely = 0, LIKELY * tolerance
    for iteration, iterate in enumerate(islice(sparse_iterates(best.pattern), max_iterations), 1):
        late = iteration == max_iterations or 0 < 2 * due <= iteration
        # A certificate costs as much as a hundred iterations, so that few are tried.
        if late or (iteration >= due and iterate.estimate <= likely):
            best.improve(
                iterate.weights, (iterate.vectors * iterate.values) @ iterate.vectors.T, iterate.z
            )
            stopping_gap = best.stopping_gap(tolerance)
            if best.gap <= stopping_gap:
                return best.ended(iteration, tolerance)
            due = iteration + max(20, iteration // PATIENCE)
            # The estimate falls with the gap, so that the next try waits for as much less of it.
            likely = iterate.estimate * stopping_gap / best.gap
    best.iterations = max_iterations
    return best


def _is_check(iteration: int) -> bool:
    return iteration % (10 if iteration <= FIRST_ITERATIONS else 20) == 0


def _is_half_way(iteration: int) -> bool:
    """Whether a solver that was close at the last check may look before the next one."""
    return iteration % 10 == 5 if iteration <= FIRST_ITERATIONS else iteration % 20 == 10


def _balance(deviation: Array, z: Array, previous: Array, u: Array) -> float:
    """Return the factor on the penalty that balances the primal and the dual residual."""
    primal = np.linalg.norm(deviation - z) * np.linalg.norm(u)
    dual = np.linalg.norm(z - previous) * np.linalg.norm(deviation)
    return 2.0 if primal > IMBALANCE * dual else 0.5 if dual > IMBALANCE * primal else 1.0


def _relative(slem: float, bound: float) -> float:
    return (slem - bound) / slem if slem > 0 else 0.0
