"""Lasso codes of many samples at once: exact steps, and accelerated proximal gradient between them.

For each sample z the code is argmin over h of 1/2 ||z - D h||^2 + l1 ||h||_1, the M(Z, theta) of
Dieuleveut et al. 2025, section 2.3. Where the Gram matrix DᵀD has full rank, block pivots from the
least-squares codes find most supports (``active_set.pivoted``). For the rest, and where it is
singular, bursts of FISTA (Beck and Teboulle 2009), with the momentum of strong convexity where
there is one, alternate with exact steps on the support found so far (``active_set.refined``). All
samples share the Gram matrix, so an iteration is one matrix product. What has converged leaves the
batch. The length of a burst depends on the dictionary alone and a sample's arithmetic never on the
others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softshrink

from mpifed.errors import InputError, RunError
from mpifed.local.invariance import COLUMNS
from mpifed.surrogates.active_set import pivoted, refined
from mpifed.surrogates.base import padded
from mpifed.surrogates.lasso_problem import Quadratic, Samples, product, quadratic

FIRST_BURST = (25, 60)
"""Least and most iterations before the first look at the duality gap and the first exact step."""
SECOND_BURST = 20
"""Iterations before the second look."""
GROWTH = 1.5
"""By how much bursts grow from then on."""
EXACT_STEPS = 2
"""Exact steps after each burst."""
MOST_ITERATIONS = 100_000
NUMBERS = 1 << 15
"""Numbers of codes that are pivoted at once, to stay in a core's cache."""


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
    dictionary, z = dictionary.double(), z.double()
    problem = quadratic(dictionary, l1, nonnegative)
    if not len(z):
        return dictionary.new_zeros(0, dictionary.shape[1])
    samples = described(dictionary, z, tolerance)
    with np.errstate(all="ignore"):  # what is not finite is never good enough
        found, unfinished = begun(problem, samples)
        left = samples.where(unfinished)
        stuck = finish(problem, left[0], found) if left is not None else 0
        if stuck:
            raise RunError(
                f"the codes of {stuck} samples did not reach a relative duality gap of "
                f"{tolerance:g} in {MOST_ITERATIONS} iterations; a larger tolerance or l1 may help"
            )
    return torch.from_numpy(found)[: len(z)]


def described(dictionary: Tensor, z: Tensor, tolerance: float) -> Samples:
    """The samples ``z`` (samples, p) by their products with the atoms and with themselves."""
    full = len(z) - len(z) % COLUMNS
    parts = [part for part in (z[:full], padded(z[full:], COLUMNS)) if len(part)]  # copies few rows
    c = torch.cat([torch.mm(dictionary.T, part.T) for part in parts], 1).numpy()
    energy = np.concatenate(
        [np.einsum("ij,ij->i", part, part) for part in map(Tensor.numpy, parts)]
    )
    return Samples(len(z), np.arange(len(energy)), c, energy, 0.5 * tolerance * energy)


def begun(problem: Quadratic, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Codes (samples, K) by block pivots, and who has none that are good enough, (samples,)."""
    atoms, count = samples.c.shape
    if problem.inverse is None:
        return np.empty((count, atoms)), np.ones(count, bool)
    width = max(COLUMNS, NUMBERS // atoms // COLUMNS * COLUMNS)
    if count <= width:
        return pivoted(problem, samples)
    slices = (slice(first, min(first + width, count)) for first in range(0, count, width))
    parts = [pivoted(problem, samples.part(columns)) for columns in slices]
    return np.concatenate([h for h, _ in parts]), np.concatenate([bad for _, bad in parts])


def finish(problem: Quadratic, samples: Samples, found: np.ndarray) -> int:
    """Fills ``found`` (all samples, K) by proximal gradient and exact steps.

    Returns how many of ``samples`` have no good codes after ``MOST_ITERATIONS``.
    """
    steps = step_sizes(problem)
    h = np.zeros_like(samples.c)
    iterations, burst, following = 0, first_burst(steps), float(SECOND_BURST)
    while iterations < MOST_ITERATIONS:
        for exact in (False, *[True] * EXACT_STEPS):
            if exact:
                h, done = refined(problem, samples, h)
            else:
                h = descend(problem, steps, samples.c, h, burst)
                done = samples.reached(problem, h, samples.c - product(problem.gram, h))
            found[samples.owner] = h.T
            left = samples.where(~done)
            if left is None:
                return 0
            samples, columns = left
            h = h.take(columns, 1)
        iterations += burst
        burst, following = int(following), GROWTH * following
    return samples.count


@dataclass(frozen=True)
class Steps:
    """What FISTA needs of a problem: the extreme eigenvalues of G, the smaller 0 if singular."""

    smoothness: float
    convexity: float


def step_sizes(problem: Quadratic) -> Steps:
    """Those of ``problem``."""
    eigenvalues = torch.linalg.eigvalsh(torch.from_numpy(problem.gram))
    smallest = 0.0 if problem.inverse is None else max(0.0, eigenvalues[0].item())
    # A dictionary of zeros has the codes zero, by any step.
    return Steps(eigenvalues[-1].item() or 1.0, smallest)


def first_burst(steps: Steps) -> int:
    """About as many iterations as a good share of the samples needs, by the condition number."""
    least, most = FIRST_BURST
    if not steps.convexity:
        return most
    return min(most, max(least, math.ceil(6 * math.sqrt(steps.smoothness / steps.convexity))))


def descend(
    problem: Quadratic, steps: Steps, c: np.ndarray, start: np.ndarray, count: int
) -> np.ndarray:
    """``count`` iterations of FISTA from ``start``: (K, samples)."""
    root = math.sqrt(steps.convexity / steps.smoothness)
    most = (1 - root) / (1 + root)
    matrix = torch.from_numpy(np.eye(len(problem.gram)) - problem.gram / steps.smoothness)
    threshold = problem.l1 / steps.smoothness
    shift, h = torch.from_numpy(c / steps.smoothness), torch.from_numpy(start)
    point, target = h.clone(), torch.empty_like(h)
    t = 1.0
    for _ in range(count):
        torch.addmm(shift, matrix, point, out=target)
        if problem.nonnegative:
            after = (target - threshold).clamp_(min=0)
        else:
            after = softshrink(target, threshold)
        following = (1 + math.sqrt(1 + 4 * t * t)) / 2
        torch.lerp(h, after, 1 + min((t - 1) / following, most), out=point)
        h, t = after, following
    return h.numpy()
