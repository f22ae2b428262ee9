"""The fastest mixing weights of large sparse graphs, by products with sparse matrices.

The saddle point of the problem of ``fastest_mixing``,

    min over admissible W  max over ||Y||_* <= 1  of  <Y, W - J> ,

by the over-relaxed primal-dual method of Chambolle and Pock (2011, algorithm 1; 2016, section 4.1)
with diagonal step sizes (Pock and Chambolle 2011, section 2):

    Y+ = P_nuclear(Y + s (W - J)),   W+ = P_admissible(W - T o (2 Y+ - Y)) .

Y has few eigenvectors, so one step of block Lanczos on the last ones finds the next, and W needs Y
on edges alone. Changing the weight of {i, j} turns those eigenvectors by as much as they reach i
and j. With leverages h, the squared rows of their basis, T_ij is thus 1 / (s (h_i + h_j)): on most
edges many times the uniform step 1 / s. Where a step of Y shows that T is too large, with
||T^(1/2) Y||^2 above ||Y||^2 / s on the edges, T is reduced.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.weights.formulas import metropolis_hastings_weights
from topologies.weights.patterns import Pattern, SparsePattern
from topologies.weights.projections import Scales, project_scaled, soft_threshold

Array = NDArray[np.float64]

# How far a step goes beyond the iterate, once the steps have their scales: the method converges
# below 2.
OVER_RELAXATION = 1.8

# Vectors in the basis besides those of Y and a quarter more: what Y may need next is among them.
SPARE = 16

# Over-relaxation leaves parts of the last Y in it; those below this share of its largest eigenvalue
# are dropped from the basis.
FORGOTTEN = 1e-3

# When s is set to what balances the residuals, by the number of eigenvalues and their level, which
# change most at first.
SIZED_AT = (3, 5, 10, 20)

# When the steps T are set by leverages: first when s has settled, then each time that the number of
# iterations has doubled.
SCALES_AT = (20, 40, 80, 160)

# When eigenvectors that the basis has missed are looked for, besides every twentieth iteration:
# more often at first, as the first basis is a guess.
MISSED_AT = (5, 10, 15, 20, 30, 40, 50, 60)

# Of the mean leverage, what each node has besides, so that no step is boundless.
LEAST_LEVERAGE = 0.5

# The share of the largest eigenvalue of a product of vectors below which another one is rounding.
NOTHING = 1e-12


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
        count, level = soft_threshold(np.abs(values[order]))
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
                size *= float(np.exp(np.log(scales.edges).mean() / 2))


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
