"""The fastest mixing Markov chain: the symmetric weights with the smallest SLEM, certified.

A weight matrix is admissible if it is symmetric and non-negative, zero outside the pattern of the
graph, and has rows that sum to one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from topologies.cpu_time import cpu_seconds
from topologies.errors import TopologyError
from topologies.graphs.build import edge_array
from topologies.matrix import at_most_one
from topologies.weights.formulas import (
    best_constant_weights,
    larger_degrees,
    max_degree_weights,
    metropolis_hastings_weights,
)

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Array = NDArray[np.float64]

ROW_TOLERANCE = 1e-11
ROWS, SOLVED, EMPTY = 1e-9, 1e-3, 1e-3
POWERS, ROUNDING = 12, 1e-9

MOST_CLASSES = 32
SAME = 1e-9

OVER_RELAXATION = 1.8
SPARE, FORGOTTEN = 16, 1e-3
SIZED_AT = (3, 5, 10, 20)
SCALES_AT = (20, 40, 80, 160)
MISSED_AT = (5, 10, 15, 20, 30, 40, 50, 60)
# Of the mean leverage, what each node has besides, so that no step is boundless.
LEAST_LEVERAGE = 0.5

BALANCE = 1.0
NOTHING = 1e-12

FIRST_ITERATIONS = 60
DENSE_OVER_RELAXATION = 1.9
IMBALANCE = 1.5
# Within how many times the wanted gap, and from how many nodes on, a look between two checks is
# worth its eigenvalues: iterations cost more than they do.
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
class Pattern:
    """Where weights may be: on the edges (i[e], j[e]) and, with self-loops, on the diagonal."""

    n: int
    edges: NDArray[np.int64]
    self_loops: bool

    @cached_property
    def i(self) -> NDArray[np.int64]:
        """The first end of each edge."""
        return np.ascontiguousarray(self.edges[:, 0])

    @cached_property
    def j(self) -> NDArray[np.int64]:
        """The second end of each edge."""
        return np.ascontiguousarray(self.edges[:, 1])

    def node_sums(self, on_edges: NDArray[Any]) -> Array:
        """Return the sum of the values (m,) on each node's edges, float64 of shape (n,)."""
        both = np.concatenate([on_edges, on_edges])
        return np.bincount(self._ends, both, self.n).astype(np.float64, copy=False)

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """The nodes of ``node_sums``, which asks for them hundreds of times."""
        return np.concatenate([self.i, self.j])

    def dense(self, on_edges: Array, diagonal: Array) -> Array:
        """Return the symmetric (n, n) with these values on edges (m,) and diagonal (n,)."""
        matrix = np.zeros((self.n, self.n))
        matrix[self.i, self.j] = on_edges
        matrix[self.j, self.i] = on_edges
        np.fill_diagonal(matrix, diagonal)
        return matrix


@dataclass(frozen=True)
class Multipliers:
    """Multipliers of the row sums, with the Cholesky factor there: where a search starts."""

    values: Array
    support: NDArray[np.bool_] | None = None
    factor: tuple[Array, bool] | None = None

    def scaled(self, by: float) -> Multipliers:
        """Return the multipliers of a problem whose matrix is scaled."""
        return Multipliers(self.values * by, self.support, self.factor)


def project_admissible(
    matrix: Array, pattern: Pattern, start: Multipliers
) -> tuple[Array, Array, Multipliers]:
    """Return the admissible matrix nearest to ``matrix`` in Frobenius norm."""
    from scipy import linalg

    i, j = pattern.i, pattern.j
    off = matrix[i, j]
    loops = matrix.diagonal() if pattern.self_loops else np.full(pattern.n, -np.inf)

    def at(y: Array) -> tuple[Array, Array, float]:
        w, d = np.maximum(off + y[i] + y[j], 0), np.maximum(loops + 2 * y, 0)
        return w, d, float(w @ w + 0.5 * d @ d - 2 * y.sum())

    y, support, factor = start.values, start.support, start.factor
    w, d, value = at(y)
    for _ in range(100):
        lack = 1 - d - pattern.node_sums(w)
        if np.abs(lack).max() < ROW_TOLERANCE:
            break
        now = np.concatenate([w > 0, d > 0])
        if factor is None or support is None or (now != support).any():
            support, factor = now, _factor(pattern, now[: len(w)], now[len(w) :])
        step = linalg.cho_solve(factor, lack, check_finite=False)
        y, (w, d, value) = descended(at, y, step, value, -2 * float(lack @ step), 1e-6)
    return w, d, Multipliers(y, support, factor)


def descended(
    at: Callable[[Array], tuple[Array, Array, float]],
    y: Array,
    step: Array,
    value: float,
    slope: float,
    shortest: float,
) -> tuple[Array, tuple[Array, Array, float]]:
    """Return where a step from y ends that is halved until it descends, and what ``at``
    has there.
    """
    length = 1.0
    while True:
        end = at(y + length * step)
        # Near the solution rounding decides the comparison, and the full step is right.
        enough = value + 1e-4 * length * slope + 1e-12 * abs(value)
        if end[2] <= enough or length < shortest:
            return y + length * step, end
        length /= 2


def _factor(
    pattern: Pattern, edges: NDArray[np.bool_], loops: NDArray[np.bool_]
) -> tuple[Array, bool]:
    from scipy import linalg

    # The shift keeps the system regular where the support is bipartite, and changes no digit.
    diagonal = 2 * loops + pattern.node_sums(edges) + 1e-9
    hessian = pattern.dense(edges.astype(np.float64), diagonal)
    factor: tuple[Array, bool] = linalg.cho_factor(hessian, overwrite_a=True, check_finite=False)
    return factor


@dataclass(frozen=True)
class Threshold:
    """The result of a soft threshold: ``count`` eigenvalues lie beyond +-level."""

    level: float
    count: int
    basis: Array


def project_nuclear(
    matrix: Array, radius: float, warm: Threshold | None = None
) -> tuple[Array, Threshold]:
    """Return the matrix of nuclear norm at most ``radius`` that is nearest to a symmetric one."""
    if warm is not None and 4 * warm.basis.shape[1] <= len(matrix):
        block, _ = np.linalg.qr(np.hstack([warm.basis, matrix @ warm.basis]))
        values, mixing = np.linalg.eigh(block.T @ (matrix @ block))
        vectors = block @ mixing
    else:
        values, vectors = np.linalg.eigh(matrix)
    sizes = np.abs(values)
    order = np.argsort(-sizes)
    descending = sizes[order]
    if np.cumsum(descending)[-1] - radius <= 0:
        if warm is not None:
            return project_nuclear(matrix, radius)
        return matrix, Threshold(0.0, len(matrix), vectors)
    count, level = _threshold(descending, radius)
    leading = vectors[:, order[: count + count // 4 + 8]]
    active, top = leading[:, :count], values[order[:count]]
    shrunk = top - np.copysign(level, top)
    return (active * shrunk) @ active.T, Threshold(level, count, leading)


class SparsePattern:
    """The matrices of a pattern in compressed rows."""

    def __init__(self, pattern: Pattern) -> None:
        self.pattern = pattern
        self.n = n = pattern.n
        nodes = np.arange(n)
        rows = np.concatenate([pattern.i, pattern.j, nodes])
        columns = np.concatenate([pattern.j, pattern.i, nodes])
        self._order = np.lexsort((columns, rows))
        self._columns = columns[self._order].astype(np.int32)
        self._starts = np.append(0, np.cumsum(np.bincount(rows, minlength=n))).astype(np.int32)

    def matrix(self, on_edges: Array, diagonal: Array) -> csr_array:
        """Return the symmetric (n, n) with these values on edges (m,) and diagonal (n,)."""
        from scipy.sparse import csr_array

        data = np.concatenate([on_edges, on_edges, diagonal])[self._order]
        return csr_array((data, self._columns, self._starts), shape=(self.n, self.n))


@dataclass(frozen=True)
class Scales:
    """The diagonal of a metric: a step for each edge (m,) and each self-loop (n,)."""

    edges: Array
    loops: Array

    def norm(self, on_edges: Array, diagonal: Array) -> float:
        """Return the squared norm of the matrix with these values times the root of the steps."""
        return float(2 * self.edges @ on_edges**2 + self.loops @ diagonal**2)

    def times(self, by: float) -> Scales:
        """Return all steps times a factor."""
        return Scales(self.edges * by, self.loops * by)

    def reduced(self, by: float) -> Scales:
        """Return the steps times a factor below one, but none above one brought below it."""
        return Scales(
            np.maximum(self.edges * by, np.minimum(self.edges, 1)),
            np.maximum(self.loops * by, np.minimum(self.loops, 1)),
        )


def project_scaled(
    off: Array, loops: Array, sparse: SparsePattern, steps: Scales, y: Array
) -> tuple[Array, Array, Array]:
    """Return the admissible matrix nearest to the given one where steps scale the distances."""
    pattern = sparse.pattern
    i, j = pattern.i, pattern.j
    everything = pattern.node_sums(steps.edges) + 2 * steps.loops

    def at(y: Array) -> tuple[Array, Array, float]:
        w = np.maximum(off + steps.edges * (y[i] + y[j]), 0)
        d = np.maximum(loops + 2 * steps.loops * y, 0)
        value = (w * w / steps.edges).sum() + 0.5 * (d * d / steps.loops).sum() - 2 * y.sum()
        return w, d, float(value)

    w, d, value = at(y)
    for _ in range(60):
        lack = 1 - d - pattern.node_sums(w)
        if np.abs(lack).max() < ROWS:
            break
        support = (w > 0) * steps.edges
        diagonal = 2 * (d > 0) * steps.loops + pattern.node_sums(support)
        # A node without positive weights has no curvature, but a direction.
        diagonal += 1e-9 * everything + EMPTY * everything * (diagonal < EMPTY * everything)
        step = _solve(sparse.matrix(support, diagonal), diagonal, lack)
        y, (w, d, value) = descended(at, y, step, value, -2 * float(lack @ step), 1e-12)
    return w, d, y


def _solve(matrix: csr_array, diagonal: Array, target: Array) -> Array:
    """Solve a system to a relative residual of SOLVED by preconditioned conjugate gradients."""
    x, residual = np.zeros(len(target)), target.copy()
    enough = SOLVED * np.abs(target).max()
    direction = scaled = residual / diagonal
    product = float(residual @ scaled)
    for _ in range(100):
        image = matrix @ direction
        length = product / float(direction @ image)
        x += length * direction
        residual -= length * image
        if np.abs(residual).max() <= enough:
            break
        scaled = residual / diagonal
        next_product = float(residual @ scaled)
        direction = scaled + next_product / product * direction
        product = next_product
    return x


def formula_rules(pattern: Pattern) -> list[tuple[float, Array]]:
    """Return the weights of rules with a formula, each with a lower bound on its SLEM."""
    n, edges = pattern.n, pattern.edges
    rules = (
        metropolis_hastings_weights(n, edges),
        1 / larger_degrees(n, edges),
        max_degree_weights(n, edges),
        best_constant_weights(n, edges),
    )
    admissible = [at_most_one(n, edges, weights) for weights in rules]
    return [(_least_slem(pattern, weights), weights) for weights in admissible]


def best_of(
    pattern: Pattern, best: float, weights: Array, rules: list[tuple[float, Array]]
) -> tuple[float, Array, list[tuple[float, Array]]]:
    """Return the best of a candidate and the rules, and the rules that are not computed yet."""
    left = [(least, rule) for least, rule in rules if least > best]
    exact = [(slem_of(pattern, rule), rule) for least, rule in rules if least <= best]
    for slem, rule in reversed(exact):
        if slem <= best:
            best, weights = slem, rule
    return best, weights, left


def _least_slem(pattern: Pattern, weights: Array) -> float:
    """Return a lower bound on the SLEM: how far powers of W stretch a vector of mean zero."""
    matrix = pattern.dense(weights, 1 - pattern.node_sums(weights))
    x = np.sin(np.arange(1.0, pattern.n + 1))
    ratio = 0.0
    for _ in range(POWERS):
        x = x - x.mean()
        before = float(np.linalg.norm(x))
        if before == 0:
            return 0.0
        x = matrix @ (x / before)
        ratio = float(np.linalg.norm(x - x.mean()))
    return ratio * (1 - ROUNDING)


def slem_of(pattern: Pattern, weights: Array) -> float:
    """Return the SLEM of weights (m,), 0 where it is rounding."""
    matrix = pattern.dense(weights, 1 - pattern.node_sums(weights))
    value = float(np.abs(np.linalg.eigvalsh(matrix - 1 / pattern.n)).max())
    return 0.0 if value < pattern.n * np.finfo(float).eps else value


def feasible_bound(pattern: Pattern, y: Array, z: Array) -> float:
    """Return the lower bound of the dual pair (y, z), made feasible first."""
    i, j = pattern.i, pattern.j
    y = y.copy()
    y[i, j] = y[j, i] = np.maximum(y[i, j], (z[i] + z[j]) / 2)
    if pattern.self_loops:
        np.fill_diagonal(y, np.maximum(y.diagonal(), z))
    means = y.mean(axis=1)
    y += means.mean() - means - means[:, None]
    value = (z - 2 * means + means.mean()).sum()
    return max(0.0, float(value / max(1.0, np.abs(np.linalg.eigvalsh(y)).sum())))


def symmetric_solution(pattern: Pattern) -> tuple[Array, Array, Array] | None:
    """Return optimal weights with their dual pair, if the graph's symmetries give them."""
    n = pattern.n
    if n == 1:
        return np.zeros(0), np.zeros((1, 1)), np.zeros(1)
    degrees = pattern.node_sums(np.ones(len(pattern.i)))
    if len(np.unique(degrees)) > 2:
        return None
    edge_class, node_class = _classes(pattern, degrees)
    count = int(edge_class.max()) + 1
    if count > MOST_CLASSES:
        return None

    # A mixture with unlike coefficients separates the eigenspaces that all classes share.
    vectors = np.linalg.eigh(_laplacian(pattern, np.sqrt(2.0 + edge_class)))[1][:, 1:]
    eigenvalues, class_degrees = np.empty((n - 1, count)), np.empty((n, count))
    for c in range(count):
        laplacian = _laplacian(pattern, (edge_class == c).astype(np.float64))
        class_degrees[:, c] = laplacian.diagonal()
        moved = laplacian @ vectors
        eigenvalues[:, c] = (moved * vectors).sum(axis=0)
        if np.abs(moved - vectors * eigenvalues[:, c]).max() > SAME * n:
            return None

    space = _alike(eigenvalues @ np.sqrt(2.0 + np.arange(count)))
    weights, forces = _best_weights(_representatives(eigenvalues, space), class_degrees)
    shares = (forces / np.bincount(space))[space]
    y = (vectors * shares) @ vectors.T
    return weights[edge_class], y, _node_values(pattern, y, edge_class, node_class)


def _laplacian(pattern: Pattern, weights: Array) -> Array:
    return pattern.dense(-weights, pattern.node_sums(weights))


def _classes(pattern: Pattern, degrees: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the class of each edge and node; those with the same heat kernel are in one class."""
    spectrum, vectors = np.linalg.eigh(_laplacian(pattern, np.ones(len(pattern.i))))
    kernel = (vectors * np.exp(-spectrum / degrees.max())) @ vectors.T
    i, j, self_kernel = pattern.i, pattern.j, kernel.diagonal()
    return _alike(kernel[i, j] + np.sqrt(2) * (self_kernel[i] + self_kernel[j])), _alike(
        self_kernel
    )


def _alike(values: Array) -> NDArray[np.int64]:
    """Number the clusters of equal values, in ascending order."""
    order = np.argsort(values)
    steps = np.diff(values[order], prepend=values[order[0]]) > SAME
    number = np.empty(len(values), dtype=np.int64)
    number[order] = np.cumsum(steps)
    return number


def _representatives(rows: Array, number: NDArray[np.int64]) -> Array:
    return rows[np.unique(number, return_index=True)[1]]


def _best_weights(eigenvalues: Array, class_degrees: Array) -> tuple[Array, Array]:
    """Minimise t over w >= 0 with -t <= 1 - eigenvalues w <= t and class_degrees w <= 1."""
    # Imported when it is needed, since it takes half as long as the whole package.
    from scipy.optimize import linprog

    k, count = eigenvalues.shape
    degrees = np.unique(class_degrees, axis=0)
    t = np.ones((k, 1))
    program = linprog(
        np.append(np.zeros(count), 1.0),
        A_ub=np.block([[-eigenvalues, -t], [eigenvalues, -t], [degrees, 0 * degrees[:, :1]]]),
        b_ub=np.concatenate([-t[:, 0], t[:, 0], np.ones(len(degrees))]),
        method="highs",
    )
    marginals = program.ineqlin.marginals
    return program.x[:count], marginals[k : 2 * k] - marginals[:k]


def _node_values(
    pattern: Pattern, y: Array, edge_class: NDArray[np.int64], node_class: NDArray[np.int64]
) -> Array:
    """Return the z of largest sum with z_i + z_j <= 2 Y_ij on edges and z_i <= Y_ii."""
    from scipy.optimize import linprog

    edges = np.unique(edge_class, return_index=True)[1]
    ends = np.stack([node_class[pattern.i[edges]], node_class[pattern.j[edges]]])
    sums = np.zeros((len(edges), node_class.max() + 1))
    np.add.at(sums, (np.arange(len(edges)), ends), 1.0)
    program = linprog(
        -np.bincount(node_class).astype(np.float64),
        A_ub=sums,
        b_ub=2 * y[pattern.i[edges], pattern.j[edges]],
        bounds=[(None, top) for top in _representatives(y.diagonal(), node_class)],
        method="highs",
    )
    values: Array = program.x[node_class]
    return values


@dataclass(frozen=True)
class SparseIterate:
    """What the primal-dual method has found."""

    weights: Array
    vectors: Array
    values: Array
    z: Array
    estimate: float


def sparse_iterates(pattern: Pattern) -> Iterator[SparseIterate]:
    """Yield the iterates of the primal-dual method, without end."""
    n, i, j = pattern.n, pattern.i, pattern.j
    sparse = SparsePattern(pattern)
    w = metropolis_hastings_weights(n, pattern.edges)
    loops = 1 - pattern.node_sums(w)
    basis = _first_basis(sparse, w, loops)
    inner = np.zeros((basis.shape[1], basis.shape[1]))  # Y = basis inner basis'
    y, y_loops, multipliers = np.zeros(len(i)), np.zeros(n), np.zeros(n)
    size, scales = 1.0, Scales(np.ones(len(i)), np.ones(n))
    iteration = most = 0
    while True:
        iteration += 1
        relaxed = OVER_RELAXATION if iteration > SCALES_AT[0] else 1.0
        matrix = sparse.matrix(w, loops)
        image = _centred(matrix @ basis)
        residual = _outside(basis, image)
        block = np.hstack([basis, residual])
        ritz = block.T @ np.hstack([image, _centred(matrix @ residual)])
        ritz = (ritz + ritz.T) / 2
        largest = float(np.abs(np.linalg.eigvalsh(ritz)).max())
        moved_to = size * ritz
        moved_to[: len(inner), : len(inner)] += inner
        values, mixing = np.linalg.eigh(moved_to)
        order = np.argsort(-np.abs(values), kind="stable")
        count, level = _threshold(np.abs(values[order]))
        most = count if iteration <= SIZED_AT[-1] else max(most, count)
        retained = mixing[:, order[: most + most // 4 + SPARE]]
        shrunk = values[order[:count]]
        shrunk = shrunk - np.copysign(level, shrunk)
        if relaxed > 1:
            retained = np.hstack(
                [retained, _left(retained, inner, FORGOTTEN * np.abs(shrunk).max())]
            )
        basis = block @ retained
        retained = retained[: len(inner)]
        old = retained.T @ inner @ retained
        step = -old
        step[np.arange(count), np.arange(count)] += shrunk
        moved = float((step**2).sum())
        active = basis[:, :count]
        new_y, new_y_loops = _on_pattern(pattern, active, shrunk)
        turned = scales.norm(new_y - y, new_y_loops - y_loops)
        if turned > moved > 0:
            scales = scales.reduced(0.9 * moved / turned)
        steps = scales.times(1 / size)
        new_w, new_diagonal, multipliers = project_scaled(
            w - steps.edges * (2 * new_y - y),
            loops - steps.loops * (2 * new_y_loops - y_loops),
            sparse,
            steps,
            multipliers,
        )
        estimate = max(0.0, largest - level / size)
        yield SparseIterate(new_w, active, shrunk, 2 * multipliers, estimate)
        w, loops = w + relaxed * (new_w - w), loops + relaxed * (new_diagonal - loops)
        inner = old + relaxed * step
        if relaxed > 1:
            spectrum, turn = np.linalg.eigh(inner)
            y, y_loops = _on_pattern(pattern, basis @ turn, spectrum)
        else:
            y, y_loops = new_y, new_y_loops
        if iteration in MISSED_AT or iteration % 20 == 0:
            missed = _missed(sparse, w, loops, basis, 0.9 * level / size)
            basis = np.hstack([basis, missed])
            inner = np.pad(inner, (0, missed.shape[1]))
        if iteration in SIZED_AT and level > 0:
            # At the solution of every graph tried, this balances the two residuals.
            size /= count * level
        if iteration in SCALES_AT:
            leverage = (basis[:, : most + most // 4] ** 2).sum(axis=1)
            leverage += LEAST_LEVERAGE * most / n
            scales = Scales(1 / (leverage[i] + leverage[j]), 1 / (2 * leverage))
            if iteration == SCALES_AT[0]:
                size *= BALANCE * float(np.exp(np.log(scales.edges).mean() / 2))


def _first_basis(sparse: SparsePattern, w: Array, loops: Array) -> Array:
    """Return vectors near the extreme eigenvectors of W - J."""
    matrix = sparse.matrix(w, loops)
    columns = min(2 * SPARE, sparse.n - 1)
    basis = np.random.default_rng(0).standard_normal((sparse.n, columns))
    for _ in range(12):
        basis, _ = np.linalg.qr(_centred(matrix @ basis))
    return basis


def _centred(block: Array) -> Array:
    return block - block.mean(axis=0)


def _outside(basis: Array, block: Array) -> Array:
    """Return an orthonormal basis of what the block adds to the basis."""
    block = block - basis @ (basis.T @ block)
    squares, turned = np.linalg.eigh(block.T @ block)
    # Smaller ones are rounding. Products of matrices cost a third of a QR decomposition.
    added = squares > NOTHING * squares.max(initial=NOTHING)
    block = block @ (turned[:, added] / np.sqrt(squares[added]))
    block -= basis @ (basis.T @ block)
    return block


def _threshold(descending: Array, total: float = 1.0) -> tuple[int, float]:
    """Return how many values exceed the level above which they sum to the total, and the level."""
    excess = np.cumsum(descending) - total
    ranks = np.arange(1, len(descending) + 1)
    count = int(np.count_nonzero(descending * ranks > excess))
    return count, max(0.0, float(excess[count - 1] / count))


def _on_pattern(pattern: Pattern, vectors: Array, values: Array) -> tuple[Array, Array]:
    """Return the matrix with these eigenvectors and eigenvalues on edges and on the diagonal."""
    scaled = vectors * values
    on_edges: Array = np.einsum("ij,ij->i", scaled[pattern.i], vectors[pattern.j])
    on_diagonal: Array = vectors**2 @ values
    return on_edges, on_diagonal


def _left(retained: Array, inner: Array, least: float) -> Array:
    """Return what spans the last Y beyond the retained vectors, where it is more than ``least``."""
    inner_padded = np.zeros((len(retained), len(inner)))
    inner_padded[: len(inner)] = inner
    inner_padded -= retained @ (retained.T @ inner_padded)
    spanning, sizes, _ = np.linalg.svd(inner_padded, full_matrices=False)
    spanning = spanning[:, sizes > least]
    added: Array = spanning - retained @ (retained.T @ spanning)
    return added


def _missed(sparse: SparsePattern, w: Array, loops: Array, basis: Array, level: float) -> Array:
    """Return eigenvectors of W - J orthogonal to the basis with eigenvalues beyond +-level."""
    from scipy.sparse.linalg import LinearOperator, eigsh

    if basis.shape[1] + 2 > sparse.n:
        return basis[:, :0]
    matrix = sparse.matrix(w, loops)

    def image(x: Array) -> Array:
        x = x - basis @ (basis.T @ x)
        x = matrix @ x
        x = x - x.mean()
        moved: Array = x - basis @ (basis.T @ x)
        return moved

    n = sparse.n
    operator = LinearOperator((n, n), matvec=image, dtype=np.float64)
    start = np.sin(np.arange(1.0, n + 1))
    values, vectors = eigsh(operator, k=min(24, n - 2), v0=start, tol=0.03, maxiter=1000)
    return _outside(basis, vectors[:, np.abs(values) > level])


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
