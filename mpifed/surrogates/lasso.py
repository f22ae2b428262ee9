"""Lasso codes of many samples at once: accelerated proximal gradient, finished by exact steps.

For each sample z the code is argmin over h of 1/2 ||z - D h||^2 + l1 ||h||_1, the M(Z, theta) of
Dieuleveut et al. 2025, section 2.3. All samples share the Gram matrix DᵀD, so an iteration is one
matrix product. Bursts of FISTA (Beck and Teboulle 2009), with the momentum of strong convexity
where the Gram matrix has full rank, alternate with exact steps on the support found so far
(``active_set``). What has converged leaves the batch. The length of a burst depends on the
dictionary alone and a sample's arithmetic never on the others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad, softshrink

from mpifed.errors import InputError, RunError
from mpifed.local.invariance import LANES
from mpifed.surrogates.active_set import Quadratic, refined
from mpifed.surrogates.base import filled, padded

FIRST_BURST = (25, 60)
"""Least and most iterations before the first look at the duality gap and the first exact step."""
SECOND_BURST = 20
"""Iterations before the second look."""
GROWTH = 1.5
"""By how much bursts grow from then on."""
EXACT_STEPS = 2
"""Exact steps after each burst."""
RANK_TOLERANCE = 1e-10
"""A Gram matrix is singular where its extreme eigenvalues have a smaller ratio."""
DAMPING = 1e-7
"""What exact steps add to a singular Gram matrix, relative to its largest eigenvalue."""
COLUMNS = 8
"""Products are faster for a multiple of as many atoms: up to a tenth is added, all zero."""
MOST_ITERATIONS = 100_000


@dataclass(frozen=True)
class Samples:
    """Samples still at work, padded to a multiple of ``LANES``; the first ``count`` are real.

    ``owner`` (rows,) numbers them in the input; ``h`` are the codes so far, ``c`` = Dᵀ z, both
    (rows, K); ``energy`` is ||z||^2 and ``limit`` the duality gap to reach, both (rows,).
    """

    count: int
    owner: Tensor
    h: Tensor
    c: Tensor
    energy: Tensor
    limit: Tensor

    def at(self, rows: Tensor, h: Tensor) -> Samples:
        """The samples ``rows`` (not empty) with the codes ``h`` of all."""
        all_rows = filled(rows)
        parts = (self.owner, h, self.c, self.energy, self.limit)
        kept = (part.index_select(0, all_rows) for part in parts)
        return Samples(len(rows), *kept)


def codes(
    dictionary: Tensor,
    z: Tensor,
    l1: float,
    tolerance: float = 1e-8,
    *,
    nonnegative: bool = False,
) -> Tensor:
    """The lasso codes of ``z`` (samples, p) over ``dictionary`` (p, K): (samples, K), float64.

    Stops each sample at a duality gap of at most ``tolerance`` times 1/2 ||z||^2. With
    ``nonnegative`` only h >= 0 are considered. Raises ``InputError`` unless l1 > 0, ``RunError``
    for a dictionary that is not finite or a gap not reached in ``MOST_ITERATIONS``.
    """
    if not l1 > 0:
        raise InputError(f"l1 is {l1}; a lasso needs a penalty above 0")
    problem = quadratic(dictionary.double(), l1, nonnegative)
    found = problem.gram.new_zeros(len(z), len(problem.gram))
    if not len(z):
        return found
    z, full = z.double(), len(z) - len(z) % LANES
    parts = [z[:full], padded(z[full:])]  # pads a few rows instead of copying all
    c = torch.cat([part @ dictionary.double() for part in parts])
    energy = torch.cat([(part * part).sum(1) for part in parts])
    limit = 0.5 * tolerance * energy
    samples = Samples(len(z), torch.arange(len(c)), torch.zeros_like(c), c, energy, limit)
    iterations, burst, following = 0, first_burst(problem), float(SECOND_BURST)
    while iterations < MOST_ITERATIONS:
        left = descend(problem, samples, burst, found)
        for _ in range(EXACT_STEPS):
            left = exact_step(problem, left, found) if left is not None else None
        if left is None:
            return found
        iterations, samples = iterations + burst, left
        burst, following = int(following), GROWTH * following
    raise RunError(
        f"the codes of {samples.count} samples did not reach a relative duality gap of "
        f"{tolerance:g} in {MOST_ITERATIONS} iterations; a larger tolerance or l1 may help"
    )


def quadratic(dictionary: Tensor, l1: float, nonnegative: bool) -> Quadratic:
    """The problem of ``dictionary`` (p, K); raises ``RunError`` if that is not finite."""
    gram = dictionary.T @ dictionary
    if not torch.isfinite(gram).all():
        raise RunError("the dictionary has a value that is not finite or too large: it diverged")
    eigenvalues = torch.linalg.eigvalsh(gram)
    largest, smallest = eigenvalues[-1].item(), eigenvalues[0].item()
    regular = smallest > RANK_TOLERANCE * largest
    inverse = torch.cholesky_inverse(torch.linalg.cholesky(gram)) if regular else None
    # A dictionary of zeros has the codes zero, by any step.
    smoothness, convexity = largest or 1.0, smallest if regular else 0.0
    damping = DAMPING * smoothness
    return Quadratic(gram, inverse, damping, smoothness, convexity, l1, nonnegative)


def duality_gaps(problem: Quadratic, h: Tensor, g: Tensor, c: Tensor, energy: Tensor) -> Tensor:
    """Objective minus the dual value at the scaled residual, (rows,), for g = c - G h = Dᵀ r.

    The dual point is a r with the largest a <= 1 that is feasible. Written as
    1/2 (1 - a)^2 ||r||^2 + l1 ||h||_1 - a hᵀ g, nothing cancels.
    """
    steepest = (g if problem.nonnegative else g.abs()).amax(1)
    scale = torch.where(steepest > problem.l1, problem.l1 / steepest, 1.0)
    residual = (energy - (h * (c + g)).sum(1)).clamp(min=0)
    return 0.5 * (1 - scale) ** 2 * residual + problem.l1 * h.abs().sum(1) - scale * (h * g).sum(1)


def first_burst(problem: Quadratic) -> int:
    """About as many iterations as a good share of the samples needs, by the condition number."""
    least, most = FIRST_BURST
    if not problem.convexity:
        return most
    return min(most, max(least, math.ceil(6 * math.sqrt(problem.smoothness / problem.convexity))))


def descend(problem: Quadratic, samples: Samples, count: int, found: Tensor) -> Samples | None:
    """``count`` iterations of FISTA; writes what is good enough and returns the others."""
    root = math.sqrt(problem.convexity / problem.smoothness)
    most = (1 - root) / (1 + root)
    n = len(problem.gram)
    wide = (0, -n % COLUMNS if 10 * (-n % COLUMNS) < n else 0)
    matrix = torch.eye(n, dtype=problem.gram.dtype) - problem.gram / problem.smoothness
    matrix = pad(matrix, wide + wide)
    threshold = problem.l1 / problem.smoothness
    shift = pad(samples.c / problem.smoothness, wide)
    h = pad(samples.h, wide)
    point, target = h.clone(), torch.empty_like(h)
    t = 1.0
    for _ in range(count):
        torch.addmm(shift, point, matrix, out=target)
        if problem.nonnegative:
            after = (target - threshold).clamp_(min=0)
        else:
            after = softshrink(target, threshold)
        following = (1 + math.sqrt(1 + 4 * t * t)) / 2
        torch.lerp(h, after, 1 + min((t - 1) / following, most), out=point)
        h, t = after, following
    h = h[:, :n].contiguous()
    g = samples.c - h @ problem.gram
    done = duality_gaps(problem, h, g, samples.c, samples.energy) <= samples.limit
    return _leave(samples, h, done, found)


def exact_step(problem: Quadratic, samples: Samples, found: Tensor) -> Samples | None:
    """One exact step; writes what it finishes and returns the others."""
    h, done = refined(
        problem,
        samples.h,
        samples.c,
        lambda h, g: duality_gaps(problem, h, g, samples.c, samples.energy) <= samples.limit,
    )
    return _leave(samples, h, done, found)


def _leave(samples: Samples, h: Tensor, done: Tensor, found: Tensor) -> Samples | None:
    real = done[: samples.count]
    finished = real.nonzero()[:, 0]
    found.index_copy_(0, samples.owner.index_select(0, finished), h.index_select(0, finished))
    if len(finished) == samples.count:
        return None
    rows = (~real).nonzero()[:, 0]
    return samples.at(rows, h)
