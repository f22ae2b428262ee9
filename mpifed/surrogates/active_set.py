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

from mpifed.surrogates.base import filled


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
    clipped = torch.where(minimum * signs < 0, 0.0, minimum)
    clipped_g = c - clipped @ problem.gram
    done = good(clipped, clipped_g)
    left = (~done).nonzero()[:, 0]
    if len(left):
        rows = filled(left)
        parts = (h, g, c, signs, minimum, clipped, clipped_g)
        kept = (part.index_select(0, rows) for part in parts)
        clipped.index_copy_(0, rows, _line_search(problem, *kept))
    return clipped, done


def _line_search(
    problem: Quadratic,
    h: Tensor,
    g: Tensor,
    c: Tensor,
    signs: Tensor,
    minimum: Tensor,
    clipped: Tensor,
    clipped_g: Tensor,
) -> Tensor:
    """The best of ``h``, ``clipped`` and the first change of sign on the way to ``minimum``."""
    wrong = minimum * signs < 0
    reach = torch.where(wrong, h / (h - minimum), 1.0).amin(1, keepdim=True)
    crossed = h + reach * (minimum - h)
    crossed = torch.where(wrong & (crossed * signs <= 0), 0.0, crossed)
    best, lowest = h, objectives(h, g, c, problem.l1)
    for candidate, its_g in ((crossed, c - crossed @ problem.gram), (clipped, clipped_g)):
        value = objectives(candidate, its_g, c, problem.l1)
        lower = value < lowest
        best = torch.where(lower[:, None], candidate, best)
        lowest = torch.where(lower, value, lowest)
    return best


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
        everywhere = torch.zeros(len(b), dtype=torch.long)
        return subsystems(damped[None], everywhere, active, b + problem.damping * h)
    # h' = P (b - nu) with nu zero on A and h' zero off A, so P_II nu_I = (P b)_I for I off A.
    dense = active.sum(1, keepdim=True) > len(gram) // 2
    free = b @ inverse
    members, right = torch.where(dense, ~active, active), torch.where(dense, free, b)
    x = subsystems(torch.stack([gram, inverse]), dense[:, 0].long(), members, right)
    completed = torch.where(active, free - x @ inverse, 0.0)
    return torch.where(dense, completed, x)


def subsystems(matrices: Tensor, which: Tensor, members: Tensor, b: Tensor) -> Tensor:
    """x with M_JJ x_J = b_J for each row's own M and J, zero elsewhere: (rows, K).

    M is one of ``matrices`` (M, K, K) by ``which`` (rows,), J where ``members`` (rows, K) is true.
    Systems are padded with ones on the diagonal to a power of two, which depends on the size of J
    alone; LAPACK then solves one after the other.
    """
    n, counts = matrices.shape[1], members.sum(1)
    x = torch.zeros_like(b)
    framed = torch.nn.functional.pad(matrices, (0, 1, 0, 1))
    low, high = 0, 4
    while low < n:
        rows = ((counts > low) & (counts <= high)).nonzero()[:, 0]
        if len(rows):
            row, column = members.index_select(0, rows).nonzero(as_tuple=True)
            size = counts.index_select(0, rows)
            place = torch.arange(len(row)) - (size.cumsum(0) - size)[row]
            index = torch.full((len(rows), high), n)
            index[row, place] = column
            above = (which.index_select(0, rows)[:, None] * (n + 1) + index) * (n + 1)
            systems = framed.take(above[:, :, None] + index[:, None, :])
            systems.diagonal(dim1=1, dim2=2).add_((index == n).to(b.dtype))
            right = b.new_zeros(len(rows), high, 1)
            right[row, place, 0] = b[rows[row], column]
            factor, failed = torch.linalg.cholesky_ex(systems)
            solution = torch.cholesky_solve(right, factor)[:, :, 0]
            solution[failed > 0] = torch.nan
            x[rows[row], column] = solution[row, place]
        low, high = high, 2 * high
    return x
