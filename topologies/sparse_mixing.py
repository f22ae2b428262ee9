"""The fastest mixing weights of large sparse graphs, by products with sparse matrices.

The saddle point of fastest_mixing.py,

    min over admissible W  max over ||Y||_* <= 1  of  <Y, W - J> ,

by the primal-dual method of Chambolle and Pock (2011, algorithm 1) with diagonal step sizes (Pock
and Chambolle 2011, section 2):

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
from scipy.sparse.linalg import LinearOperator, eigsh

from topologies.formulas import metropolis_hastings_weights
from topologies.projections import Pattern
from topologies.sparse_projection import Scales, SparsePattern, project_scaled

Array = NDArray[np.float64]

SPARE = 16
SCALES_AT = (20, 40, 80, 160)
MISSED_AT = (5, 10, 15, 20, 30, 40, 50, 60)
LEAST_LEVERAGE = 0.5
"""Of the mean leverage, what each node has besides, so that no step is boundless."""

IMBALANCE, FACTOR = 2.0, 1.5
NOTHING = 1e-12


@dataclass(frozen=True)
class SparseIterate:
    """What the primal-dual method has found.

    Attributes
    ----------
    weights : ndarray of float64, shape (m,)
        Admissible weights, but for rounding.
    vectors, values : ndarray of float64, shapes (n, r) and (r,)
        The eigenvectors and eigenvalues of Y.
    z : ndarray of float64, shape (n,)
        Multipliers of the row sums.
    estimate : float
        An estimate of slem - lower_bound, usually too small.
    """

    weights: Array
    vectors: Array
    values: Array
    z: Array
    estimate: float


def sparse_iterates(pattern: Pattern) -> Iterator[SparseIterate]:
    """Yield the iterates of the primal-dual method, without end.

    Parameters
    ----------
    pattern : Pattern
        Where weights may be, with self-loops.

    Yields
    ------
    SparseIterate
        The next iterate.
    """
    n, i, j = pattern.n, pattern.i, pattern.j
    sparse = SparsePattern(pattern)
    w = metropolis_hastings_weights(n, pattern.edges)
    own = 1 - pattern.node_sums(w)
    basis = _first_basis(sparse, w, own)
    spectrum = np.zeros(basis.shape[1])
    y, y_own, multipliers = np.zeros(len(i)), np.zeros(n), np.zeros(n)
    size, scales = 1.0, Scales(np.ones(len(i)), np.ones(n))
    iteration = 0
    while True:
        iteration += 1
        matrix = sparse.matrix(w, own)
        image = _centred(matrix @ basis)
        rest = _outside(basis, image)
        block = np.hstack([basis, rest])
        ritz = block.T @ np.hstack([image, _centred(matrix @ rest)])
        ritz = (ritz + ritz.T) / 2
        largest = float(np.abs(np.linalg.eigvalsh(ritz)).max())
        sum_ = size * ritz
        sum_[np.arange(len(spectrum)), np.arange(len(spectrum))] += spectrum
        values, mixing = np.linalg.eigh(sum_)
        order = np.argsort(-np.abs(values), kind="stable")
        count, level = _threshold(np.abs(values[order]))
        kept = mixing[:, order[: count + count // 4 + SPARE]]
        shrunk = values[order[:count]]
        shrunk = shrunk - np.copysign(level, shrunk)
        overlap = kept[: len(spectrum), :count]
        moved = shrunk @ shrunk + spectrum @ spectrum - 2 * spectrum @ (overlap**2 @ shrunk)
        basis = block @ kept
        spectrum = np.zeros(basis.shape[1])
        spectrum[:count] = shrunk
        active = basis[:, :count]
        new_y = np.einsum("ij,ij->i", (active * shrunk)[i], active[j])
        new_own = active**2 @ shrunk
        turned = scales.norm(new_y - y, new_own - y_own)
        if turned > moved > 0:
            scales = scales.reduced(0.9 * moved / turned)
        steps = scales.times(1 / size)
        before, before_own = w, own
        w, own, multipliers = project_scaled(
            w - steps.edges * (2 * new_y - y),
            own - steps.loops * (2 * new_own - y_own),
            sparse,
            steps,
            multipliers,
        )
        y, y_own = new_y, new_own
        yield SparseIterate(
            w, active, shrunk, 2 * multipliers, max(0.0, largest - level / size)
        )
        if iteration in MISSED_AT or iteration % 20 == 0:
            missed = _missed(sparse, w, own, basis, 0.9 * level / size)
            basis = np.hstack([basis, missed])
            spectrum = np.append(spectrum, np.zeros(missed.shape[1]))
        if iteration in (3, 5, 10, 20):
            size /= count * level
        if iteration in SCALES_AT:
            leverage = (basis[:, : count + count // 4] ** 2).sum(axis=1)
            leverage += LEAST_LEVERAGE * count / n
            scales = Scales(1 / (leverage[i] + leverage[j]), 1 / (2 * leverage))
            if iteration == SCALES_AT[0]:
                size *= 2 * float(np.exp(np.log(scales.edges).mean() / 2))
        if iteration > SCALES_AT[0] and iteration % 20 == 0:
            primal = np.sqrt(max(moved, 0.0)) / size / np.sqrt(sparse.squares(w, own) - 1)
            change = scales.inverse_norm(w - before, own - before_own)
            dual = np.sqrt(change) * size / np.linalg.norm(shrunk)
            if primal > IMBALANCE * dual:
                size *= FACTOR
            elif dual > IMBALANCE * primal:
                size /= FACTOR


def _first_basis(sparse: SparsePattern, w: Array, own: Array) -> Array:
    """Return vectors near the extreme eigenvectors of W - J."""
    matrix = sparse.matrix(w, own)
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


def _threshold(descending: Array) -> tuple[int, float]:
    """Return how many values exceed the level above which they sum to one, and the level."""
    excess = np.cumsum(descending) - 1
    ranks = np.arange(1, len(descending) + 1)
    count = int(np.count_nonzero(descending * ranks > excess))
    return count, max(0.0, float(excess[count - 1] / count))


def _missed(sparse: SparsePattern, w: Array, own: Array, basis: Array, level: float) -> Array:
    """Return eigenvectors of W - J orthogonal to the basis with eigenvalues beyond +-level."""
    matrix = sparse.matrix(w, own)

    def image(x: Array) -> Array:
        x = x - basis @ (basis.T @ x)
        x = matrix @ x
        x = x - x.mean()
        moved: Array = x - basis @ (basis.T @ x)
        return moved

    n = sparse.n
    operator = LinearOperator((n, n), matvec=image, dtype=np.float64)
    start = np.sin(np.arange(1.0, n + 1))
    values, vectors = eigsh(operator, k=24, v0=start, tol=0.03, maxiter=1000)
    return _outside(basis, vectors[:, np.abs(values) > level])
