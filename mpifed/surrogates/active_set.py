"""Exact steps for the lasso: the minimum on the face of the current support, for many samples.

On the face where the signs are s (0: not in the support), the lasso is a linear system in the
support's rows and columns of the Gram matrix. Where more than half of the atoms are in use, the
complement is solved for instead, in the inverse of the Gram matrix, so that the systems stay small.
A singular Gram matrix is damped around the current codes; a step along its null space then ends
where the first atom leaves, like a pivot. A step never increases a sample's objective; with
proximal gradient steps between, this is feature-sign search (Lee et al. 2007) for many samples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Quadratic:
    """1/2 hᵀ G h - cᵀ h + l1 ||h||_1, and h >= 0 if ``nonnegative``, for many c.

    ``inverse`` is that of ``gram`` (K, K), or None where that is singular to rounding; ``damping``
    is then what exact steps add to its diagonal. ``smoothness`` and ``convexity`` are the extreme
    eigenvalues, the smaller one 0 if singular.
    """

    gram: Tensor
    inverse: Tensor | None
    damping: float
    smoothness: float
    convexity: float
    l1: float
    nonnegative: bool


def refined(
    problem: Quadratic,
    h: Tensor,
    c: Tensor,
    good: Callable[[Tensor, Tensor], Tensor],
) -> tuple[Tensor, Tensor]:
    """Codes no worse than ``h``, and which of them are good enough: (rows, K) and bool (rows,).

    ``good(h, g)``, g = c - G h, says which codes will do. The candidates are the minimum on the
    face with what has the wrong sign set to zero, and the point where the segment from ``h`` to
    that minimum first changes a sign.
    """
    g = c - h @ problem.gram
    entering = g > problem.l1 if problem.nonnegative else g.abs() > problem.l1
    signs = torch.where(h != 0, torch.sign(h), torch.where(entering, torch.sign(g), 0.0))
    minimum = face_minimum(problem, signs, h, c)
    wrong = minimum * signs < 0
    clipped = torch.where(wrong, 0.0, minimum)
    clipped_g = c - clipped @ problem.gram
    done = good(clipped, clipped_g)
    if done.all():
        return clipped, done
    reach = torch.where(wrong, h / (h - minimum), 1.0).amin(1, keepdim=True)
    crossed = h + reach * (minimum - h)
    crossed = torch.where(wrong & (crossed * signs <= 0), 0.0, crossed)
    best, lowest = h, objectives(h, g, c, problem.l1)
    for candidate, its_g in ((crossed, c - crossed @ problem.gram), (clipped, clipped_g)):
        value = objectives(candidate, its_g, c, problem.l1)
        lower = value < lowest
        best = torch.where(lower[:, None], candidate, best)
        lowest = torch.where(lower, value, lowest)
    return torch.where(done[:, None], clipped, best), done


def objectives(h: Tensor, g: Tensor, c: Tensor, l1: float) -> Tensor:
    """1/2 hᵀ G h - cᵀ h + l1 ||h||_1 for g = c - G h: (rows,)."""
    return l1 * h.abs().sum(1) - 0.5 * (h * (c + g)).sum(1)


def face_minimum(problem: Quadratic, signs: Tensor, h: Tensor, c: Tensor) -> Tensor:
    """h' with G_AA h'_A = c_A - l1 s_A for each row's own A = {s != 0}, zero elsewhere: (rows, K).

    A singular G is damped around ``h``. A row whose system is singular even so is NaN.
    """
    gram, inverse, active = problem.gram, problem.inverse, signs != 0
    b = c - problem.l1 * signs
    if inverse is None:
        damped = gram + problem.damping * torch.eye(len(gram), dtype=gram.dtype)
        return subsystems(damped, active, b + problem.damping * h)
    dense = active.sum(1, keepdim=True) > len(gram) // 2
    direct = subsystems(gram, active & ~dense, b)
    # h' = P (b - nu) with nu zero on A and h' zero off A, so P_II nu_I = (P b)_I for I off A.
    free = b @ inverse
    multipliers = subsystems(inverse, ~active & dense, free)
    completed = torch.where(active, free - multipliers @ inverse, 0.0)
    return torch.where(dense, completed, direct)


def subsystems(matrix: Tensor, members: Tensor, b: Tensor) -> Tensor:
    """x with matrix_JJ x_J = b_J for each row's own J, zero elsewhere: (rows, K).

    ``members`` is bool (rows, K). Systems are padded with ones on the diagonal to a power of two,
    which depends on the size of J alone; LAPACK then solves one after the other.
    """
    n, counts = len(matrix), members.sum(1)
    x = torch.zeros_like(b)
    framed = matrix.new_zeros(n + 1, n + 1)
    framed[:n, :n] = matrix
    low, high = 0, 4
    while low < n:
        rows = ((counts > low) & (counts <= high)).nonzero()[:, 0]
        if len(rows):
            row, column = members[rows].nonzero(as_tuple=True)
            size = counts[rows]
            place = torch.arange(len(row)) - (size.cumsum(0) - size)[row]
            index = torch.full((len(rows), high), n)
            index[row, place] = column
            systems = framed.take(index[:, :, None] * (n + 1) + index[:, None, :])
            systems.diagonal(dim1=1, dim2=2).add_((index == n).to(matrix.dtype))
            right = matrix.new_zeros(len(rows), high, 1)
            right[row, place, 0] = b[rows[row], column]
            factor, failed = torch.linalg.cholesky_ex(systems)
            solution = torch.cholesky_solve(right, factor)[:, :, 0]
            solution[failed > 0] = torch.nan
            x[rows[row], column] = solution[row, place]
        low, high = high, 2 * high
    return x
