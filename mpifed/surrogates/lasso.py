"""Lasso codes of many samples at once: exact steps, and accelerated proximal gradient between them.

For each sample z the code is argmin over h of 1/2 ||z - D h||^2 + l1 ||h||_1, the M(Z, theta) of
Dieuleveut et al. 2025, section 2.3. Where the Gram matrix DᵀD has full rank, block pivots from the
least-squares codes find most supports (``active_set.block_pivots``). For the others, and where it
is singular, runs of FISTA (Beck and Teboulle 2009), with the momentum of strong convexity where
there is any, alternate with exact steps on the support found so far (``active_set.refine``). All
samples share the Gram matrix, so an iteration is one matrix product. Converged samples leave the
batch. The length of a run depends on the dictionary alone, and the arithmetic of a sample never on
the other samples.
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
from mpifed.surrogates.active_set import block_pivots, refine
from mpifed.surrogates.base import padded
from mpifed.surrogates.lasso_problem import Quadratic, Samples, product, quadratic

FIRST_BURST = (25, 60)
"""Least and most iterations before the first look at the duality gap and the first exact step."""
SECOND_BURST = 20
"""Iterations before the second look."""
GROWTH = 1.5
"""The growth factor of later runs of FISTA."""
EXACT_STEPS = 2
"""Exact steps after each run of FISTA."""
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
    """Return the lasso codes of samples over a dictionary.

    Parameters
    ----------
    dictionary : Tensor of float64, shape (p, K)
        The atoms as columns.
    z : Tensor of float64, shape (samples, p)
        The samples.
    l1 : float
        The penalty, above 0.
    tolerance : float, default 1e-08
        Each sample stops at a duality gap of at most this times 1/2 ||z||^2.
    nonnegative : bool, default False
        Whether only h >= 0 are considered.

    Returns
    -------
    Tensor of float64, shape (samples, K)
        The codes.

    Raises
    ------
    InputError
        Unless l1 > 0.
    RunError
        For a dictionary that is not finite, or a gap not reached in ``MOST_ITERATIONS``.

    Examples
    --------
    >>> codes(torch.eye(2).double(), torch.tensor([[3.0, -2.0]]).double(), 1.0)
    tensor([[ 2., -1.]], dtype=torch.float64)
    """
    if not l1 > 0:
        raise InputError(f"l1 is {l1}; a lasso needs a penalty above 0")
    dictionary, z = dictionary.double(), z.double()
    problem = quadratic(dictionary, l1, nonnegative)
    if not len(z):
        return dictionary.new_zeros(0, dictionary.shape[1])
    samples = describe_samples(dictionary, z, tolerance)
    with np.errstate(all="ignore"):  # what is not finite is never good enough
        found, unfinished = initial_codes(problem, samples)
        left = samples.where(unfinished)
        stuck = finish(problem, left[0], found) if left is not None else 0
        if stuck:
            raise RunError(
                f"the codes of {stuck} samples did not reach a relative duality gap of "
                f"{tolerance:g} in {MOST_ITERATIONS} iterations; a larger tolerance or l1 may help"
            )
    return torch.from_numpy(found)[: len(z)]


def describe_samples(dictionary: Tensor, z: Tensor, tolerance: float) -> Samples:
    """Return the samples by their products with the atoms and with themselves.

    Parameters
    ----------
    dictionary : Tensor of float64, shape (p, K)
        The atoms as columns.
    z : Tensor of float64, shape (samples, p)
        The samples.
    tolerance : float
        The relative duality gap to reach.

    Returns
    -------
    Samples
        The samples.
    """
    full = len(z) - len(z) % COLUMNS
    parts = [part for part in (z[:full], padded(z[full:], COLUMNS)) if len(part)]  # copies few rows
    c = torch.cat([torch.mm(dictionary.T, part.T) for part in parts], 1).numpy()
    energy = np.concatenate(
        [np.einsum("ij,ij->i", part, part) for part in map(Tensor.numpy, parts)]
    )
    return Samples(len(z), np.arange(len(energy)), c, energy, 0.5 * tolerance * energy)


def initial_codes(problem: Quadratic, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Return codes by block pivots, and which samples need more iterations.

    Parameters
    ----------
    problem : Quadratic
        The lasso.
    samples : Samples
        The samples.

    Returns
    -------
    tuple of ndarray
        Codes (samples, K), and a bool for each sample (samples,).
    """
    atoms, count = samples.c.shape
    if problem.inverse is None:
        return np.empty((count, atoms)), np.ones(count, bool)
    width = max(COLUMNS, NUMBERS // atoms // COLUMNS * COLUMNS)
    if count <= width:
        return block_pivots(problem, samples)
    slices = (slice(first, min(first + width, count)) for first in range(0, count, width))
    parts = [block_pivots(problem, samples.part(columns)) for columns in slices]
    return np.concatenate([h for h, _ in parts]), np.concatenate([bad for _, bad in parts])


def finish(problem: Quadratic, samples: Samples, found: np.ndarray) -> int:
    """Compute codes by proximal gradient and exact steps, in place.

    Parameters
    ----------
    problem : Quadratic
        The lasso.
    samples : Samples
        The samples to work on.
    found : ndarray, shape (all samples, K)
        The codes, overwritten where they converge.

    Returns
    -------
    int
        How many samples have not converged after ``MOST_ITERATIONS``.
    """
    steps = step_sizes(problem)
    h = np.zeros_like(samples.c)
    iterations, burst, following = 0, first_burst(steps), float(SECOND_BURST)
    while iterations < MOST_ITERATIONS:
        for exact in (False, *[True] * EXACT_STEPS):
            if exact:
                h, done = refine(problem, samples, h)
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
    """The extreme eigenvalues of G, which determine the steps of FISTA.

    Attributes
    ----------
    smoothness : float
        The largest eigenvalue.
    convexity : float
        The smallest eigenvalue, 0 if G is singular.
    """

    smoothness: float
    convexity: float


def step_sizes(problem: Quadratic) -> Steps:
    """Return the extreme eigenvalues of a problem's Gram matrix."""
    eigenvalues = torch.linalg.eigvalsh(torch.from_numpy(problem.gram))
    smallest = 0.0 if problem.inverse is None else max(0.0, eigenvalues[0].item())
    # A dictionary of zeros has the codes zero, by any step.
    return Steps(eigenvalues[-1].item() or 1.0, smallest)


def first_burst(steps: Steps) -> int:
    """Return the iterations of the first run of FISTA, from the condition number."""
    least, most = FIRST_BURST
    if not steps.convexity:
        return most
    return min(most, max(least, math.ceil(6 * math.sqrt(steps.smoothness / steps.convexity))))


def descend(
    problem: Quadratic, steps: Steps, c: np.ndarray, start: np.ndarray, count: int
) -> np.ndarray:
    """Return codes after ``count`` iterations of FISTA.

    Parameters
    ----------
    problem : Quadratic
        The lasso.
    steps : Steps
        The extreme eigenvalues of G.
    c : ndarray, shape (K, samples)
        Dᵀ z.
    start : ndarray, shape (K, samples)
        The codes to start from.
    count : int
        The number of iterations.

    Returns
    -------
    ndarray, shape (K, samples)
        The codes.
    """
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
