"""Lasso codes of many samples at once: exact steps, and accelerated proximal gradient between them.

For each sample z the code is argmin over h of 1/2 ||z - D h||^2 + l1 ||h||_1, the M(Z, theta) of
Dieuleveut et al. 2025, section 2.3. Where the Gram matrix DᵀD has full rank, block pivots from the
least-squares codes find most supports (``block_pivots``). For the others, and where it
is singular, runs of FISTA (Beck and Teboulle 2009), with the momentum of strong convexity where
there is any, alternate with exact steps on the support found so far (``refine``). All
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
from mpifed.surrogate import COLUMNS, padded

# A Gram matrix is singular where it and its inverse have norms with a larger inverse product.
RANK_TOLERANCE = 1e-10
# What exact steps add to a singular Gram matrix, relative to its largest eigenvalue.
DAMPING = 1e-7

# Block pivots of a sample, at most.
MOST_EXCHANGES = 12

# Block pivots in a row that need not leave fewer numbers on the wrong side than ever before.
PATIENCE = 3

# Atoms that a sample may leave unused for a pivot; with more, gradient steps are cheaper.
MOST_UNUSED = 24

# Systems up to this size are solved together, then those up to twice this size, and so on.
SMALLEST = 4

# Up to this size they are solved side by side, larger ones by LAPACK one after the other.
ELIMINATED = 8

# Least and most iterations before the first look at the duality gap and the first exact step.
FIRST_BURST = (25, 60)

# Iterations before the second look.
SECOND_BURST = 20

# The growth factor of later runs of FISTA.
GROWTH = 1.5

# Exact steps after each run of FISTA.
EXACT_STEPS = 2

MOST_ITERATIONS = 100_000


@dataclass(frozen=True)
class Quadratic:
    """The problem 1/2 hᵀ G h - cᵀ h + l1 ||h||_1, and h >= 0 if ``nonnegative``, for many c."""

    gram: np.ndarray
    inverse: np.ndarray | None
    damping: float
    l1: float
    nonnegative: bool


def quadratic(dictionary: Tensor, l1: float, nonnegative: bool) -> Quadratic:
    """Return the problem of a dictionary."""
    gram = dictionary.T @ dictionary
    norm = float(torch.linalg.vector_norm(gram))
    if not np.isfinite(norm):
        raise RunError("the dictionary has a value that is not finite or too large: it diverged")
    inverse = None
    factor, failed = torch.linalg.cholesky_ex(gram)
    if not int(failed):
        inverse = torch.cholesky_inverse(factor)
        if not norm * float(torch.linalg.vector_norm(inverse)) * RANK_TOLERANCE < 1:
            inverse = None
    if inverse is not None:
        return Quadratic(gram.numpy(), inverse.numpy(), 0.0, l1, nonnegative)
    damping = DAMPING * float(torch.linalg.eigvalsh(gram)[-1])
    return Quadratic(gram.numpy(), None, damping, l1, nonnegative)


@dataclass(frozen=True)
class Samples:
    """Unfinished samples, filled up to a multiple of ``COLUMNS``; the first ``count`` are real."""

    count: int
    owner: np.ndarray
    c: np.ndarray
    energy: np.ndarray
    limit: np.ndarray

    def reached(self, problem: Quadratic, h: np.ndarray, g: np.ndarray) -> np.ndarray:
        """Return which codes ``h`` are good enough, bool (samples,), for g = c - G h."""
        return duality_gaps(problem, h, g, self.c, self.energy) <= self.limit

    def where(self, unfinished: np.ndarray) -> tuple[Samples, np.ndarray] | None:
        """Return the real samples for which ``unfinished``, bool (samples,), is true."""
        columns = np.flatnonzero(unfinished[: self.count])
        count = len(columns)
        if not count:
            return None
        columns = filled(columns)
        c = self.c.take(columns, 1)
        parts = (part.take(columns) for part in (self.energy, self.limit))
        return Samples(count, self.owner.take(columns), c, *parts), columns


def product(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the matrix product a b."""
    return torch.mm(torch.from_numpy(a), torch.from_numpy(b)).numpy()


def over_atoms(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return sum_k a_k b_k of each column, (samples,)."""
    return np.add.reduce(a * b, 0)


def steepest(problem: Quadratic, g: np.ndarray) -> np.ndarray:
    """Return the largest slope of each column of g: max |g_k|, or max g_k if nonnegative."""
    highest = np.maximum.reduce(g, 0)
    return highest if problem.nonnegative else np.maximum(highest, -np.minimum.reduce(g, 0))


def duality_gaps(
    problem: Quadratic, h: np.ndarray, g: np.ndarray, c: np.ndarray, energy: np.ndarray
) -> np.ndarray:
    """Return the objective minus the dual value at the scaled residual."""
    scale = problem.l1 / np.maximum(steepest(problem, g), problem.l1)
    along = over_atoms(h, g)
    residual = np.maximum(energy - over_atoms(h, c) - along, 0)
    length = np.add.reduce(np.abs(h), 0)
    return 0.5 * (1 - scale) ** 2 * residual + (problem.l1 * length - scale * along)


def objectives(h: np.ndarray, g: np.ndarray, c: np.ndarray, l1: float) -> np.ndarray:
    """Return 1/2 hᵀ G h - cᵀ h + l1 ||h||_1 for g = c - G h, (samples,)."""
    return l1 * np.add.reduce(np.abs(h), 0) - 0.5 * over_atoms(h, c + g)


def filled(columns: np.ndarray) -> np.ndarray:
    """Return the column numbers (n,), n > 0, with the first repeated to fill ``COLUMNS``."""
    return np.concatenate([columns, columns[:1].repeat(-len(columns) % COLUMNS)])


def block_pivots(problem: Quadratic, samples: Samples) -> tuple[np.ndarray, np.ndarray]:
    """Return codes by block pivots, and which samples are not finished."""
    assert problem.inverse is not None
    atoms, count = samples.c.shape
    solution, unfinished = np.zeros((count, atoms)), np.ones(count, bool)
    signs = np.copysign(1.0, product(problem.inverse, samples.c))
    if problem.nonnegative:
        np.maximum(signs, 0, out=signs)
    owner, fewest = np.arange(count), np.full(count, atoms + 1)
    patience, going = np.full(count, PATIENCE), np.ones(count, bool)
    for _ in range(MOST_EXCHANGES):
        used = np.abs(signs).sum(0)
        going &= (used <= ELIMINATED) | (used >= atoms - MOST_UNUSED)
        if not going.all():
            left = samples.where(going)
            if left is None:
                break
            samples, columns = left
            owner, signs = owner.take(columns), signs.take(columns, 1)
            fewest, patience = fewest.take(columns), patience.take(columns)
        minimum, g = face_minimum(problem, signs, samples.c)
        h, leaving = _clipped(minimum, signs)
        done = samples.reached(problem, h, samples.c - product(problem.gram, h))
        solution[owner] = h.T
        unfinished[owner] = ~done
        entering = (g if problem.nonnegative else np.abs(g)) > problem.l1
        entering &= signs == 0
        wrong = (leaving | entering).sum(0)
        patience = np.where(wrong < fewest, PATIENCE, patience - 1)
        fewest = np.minimum(fewest, wrong)
        going = ~done & (wrong > 0) & (patience > 0)
        signs = signs * ~leaving
        if entering.any():
            signs += np.sign(g) * entering
    return solution, unfinished


def refine(problem: Quadratic, samples: Samples, h: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return codes no worse than the given ones, and which are good enough."""
    g = samples.c - product(problem.gram, h)
    entering = (g if problem.nonnegative else np.abs(g)) > problem.l1
    signs = np.where(h != 0, np.sign(h), np.where(entering, np.sign(g), 0.0))
    minimum, _ = face_minimum(problem, signs, samples.c, h)
    clipped, wrong = _clipped(minimum, signs)
    clipped_g = samples.c - product(problem.gram, clipped)
    done = samples.reached(problem, clipped, clipped_g)
    if done.all():
        return clipped, done
    reach = np.minimum.reduce(np.where(wrong, h / (h - minimum), 1.0), 0)
    crossed = h + reach * (minimum - h)
    crossed = np.where(wrong & (crossed * signs <= 0), 0.0, crossed)
    best, lowest = h, objectives(h, g, samples.c, problem.l1)
    crossed_g = samples.c - product(problem.gram, crossed)
    for candidate, its_g in ((crossed, crossed_g), (clipped, clipped_g)):
        value = objectives(candidate, its_g, samples.c, problem.l1)
        lower = value < lowest
        best = np.where(lower, candidate, best)
        lowest = np.where(lower, value, lowest)
    return np.where(done, clipped, best), done


def _clipped(minimum: np.ndarray, signs: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return ``minimum`` with entries of the wrong sign set to zero, and where they are."""
    agreeing = minimum * signs
    return np.maximum(agreeing, 0) * signs, agreeing < 0


def face_minimum(
    problem: Quadratic, signs: np.ndarray, c: np.ndarray, around: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return h' with G_AA h'_A = c_A - l1 s_A for each sample's A = {s != 0}, zero elsewhere."""
    gram, inverse, active = problem.gram, problem.inverse, signs != 0
    pull = problem.l1 * signs
    b = c - pull
    if inverse is None:
        assert around is not None
        damped = gram + problem.damping * np.eye(len(gram))
        h = subsystems(damped, active, b + problem.damping * around)
        return h, c - product(gram, h)
    # h' = P (b - nu) with nu zero on A and h' zero off A, so P_II nu_I = (P b)_I for I off A.
    free = product(inverse, b)
    used = active.sum(0)
    if used.min() == len(gram):
        return free, pull
    dense = used > len(gram) // 2
    nu = subsystems(inverse, ~active & dense, free)
    h, g = (free - product(inverse, nu)) * active, pull + nu
    if not dense.all():
        sparse = filled(np.flatnonzero(~dense))
        h[:, sparse] = minima = subsystems(gram, active.take(sparse, 1), b.take(sparse, 1))
        g[:, sparse] = c.take(sparse, 1) - product(gram, minima)
    return h, g


def subsystems(matrix: np.ndarray, members: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return x with M_JJ x_J = b_J for each sample's J, zero elsewhere."""
    n, samples = b.shape
    counts = members.sum(0)
    most, size = int(counts.max()), SMALLEST
    while size < most:
        size *= 2
    # The atoms of each J, of which atom n is none.
    index = np.full((size, samples), n)
    flat = np.flatnonzero(members.T)
    sample = flat // n
    index[np.arange(len(flat)) - (counts.cumsum() - counts)[sample], sample] = flat - sample * n
    framed = np.zeros((n + 1, n + 1))
    framed[:n, :n] = matrix
    x = np.zeros((n + 1, samples))
    low, high = 0, SMALLEST
    while low < most:
        chosen = np.flatnonzero((counts > low) & (counts <= high))
        if len(chosen):
            width = min(high, most) if high <= ELIMINATED else high
            atoms = index[:width].take(chosen, 1)
            none = atoms == n
            systems = np.empty((width, width + 1, len(chosen)))
            systems[:, :width] = framed.take((atoms * (n + 1))[:, None] + atoms)
            systems.reshape(-1, len(chosen))[:: width + 2] += none
            systems[:, width] = b.take(atoms * samples + chosen, mode="clip")
            systems[:, width][none] = 0
            solve = solve_side_by_side if high <= ELIMINATED else solve_one_by_one
            x[atoms, chosen] = solve(systems)
        low, high = high, 2 * high
    return x[:n]


def solve_side_by_side(systems: np.ndarray) -> np.ndarray:
    """Return the solutions of definite systems by Gaussian elimination, in parallel over
    samples.
    """
    n, right = len(systems), systems[:, -1]
    for j in range(n):
        row = systems[j, j + 1 :]
        row /= systems[j, j]
        if j + 1 < n:
            systems[j + 1 :, j + 1 :] -= systems[j + 1 :, j, None] * row
    for j in range(n - 1, 0, -1):
        right[:j] -= systems[:j, j] * right[j]
    return right


def solve_one_by_one(systems: np.ndarray) -> np.ndarray:
    """Return the solutions of definite systems by Cholesky factors, NaN where there is none."""
    apart = torch.from_numpy(np.ascontiguousarray(systems.transpose(2, 0, 1)))
    factor, failed = torch.linalg.cholesky_ex(apart[:, :, :-1])
    solution = torch.cholesky_solve(apart[:, :, -1:], factor)[:, :, 0]
    solution[failed > 0] = torch.nan
    return solution.T.numpy()


def codes(
    dictionary: Tensor, z: Tensor, l1: float, tolerance: float = 1e-8, *, nonnegative: bool = False
) -> Tensor:
    """Return the lasso codes of samples over a dictionary."""
    if not l1 > 0:
        raise InputError(f"l1 is {l1}; a lasso needs a penalty above 0")
    dictionary, z = dictionary.double(), z.double()
    problem = quadratic(dictionary, l1, nonnegative)
    if not len(z):
        return dictionary.new_zeros(0, dictionary.shape[1])
    samples = describe_samples(dictionary, z, tolerance)
    with np.errstate(all="ignore"):  # what is not finite is never good enough
        if problem.inverse is None:
            solution, unfinished = (
                np.empty(samples.c.shape[::-1]),
                np.ones(samples.c.shape[1], bool),
            )
        else:
            solution, unfinished = block_pivots(problem, samples)
        left = samples.where(unfinished)
        stuck = finish(problem, left[0], solution) if left is not None else 0
        if stuck:
            raise RunError(
                f"the codes of {stuck} samples did not reach a relative duality gap of "
                f"{tolerance:g} in {MOST_ITERATIONS} iterations; a larger tolerance or l1 may help"
            )
    return torch.from_numpy(solution)[: len(z)]


def describe_samples(dictionary: Tensor, z: Tensor, tolerance: float) -> Samples:
    """Return the samples by their products with the atoms and with themselves."""
    count, z = len(z), padded(z, COLUMNS)
    c, rows = torch.mm(dictionary.T, z.T).numpy(), z.numpy()
    energy = np.einsum("ij,ij->i", rows, rows)
    return Samples(count, np.arange(len(z)), c, energy, 0.5 * tolerance * energy)


def finish(problem: Quadratic, samples: Samples, solution: np.ndarray) -> int:
    """Compute codes by proximal gradient and exact steps, in place."""
    eigenvalues = torch.linalg.eigvalsh(torch.from_numpy(problem.gram))
    # A dictionary of zeros has the codes zero, by any step.
    smoothness = eigenvalues[-1].item() or 1.0
    convexity = 0.0 if problem.inverse is None else max(0.0, eigenvalues[0].item())
    least, burst = FIRST_BURST
    if convexity:
        burst = min(burst, max(least, math.ceil(6 * math.sqrt(smoothness / convexity))))
    h = np.zeros_like(samples.c)
    iterations, following = 0, float(SECOND_BURST)
    while iterations < MOST_ITERATIONS:
        for exact in (False, *[True] * EXACT_STEPS):
            if exact:
                h, done = refine(problem, samples, h)
            else:
                h = descend(problem, smoothness, convexity, samples.c, h, burst)
                done = samples.reached(problem, h, samples.c - product(problem.gram, h))
            solution[samples.owner] = h.T
            left = samples.where(~done)
            if left is None:
                return 0
            samples, columns = left
            h = h.take(columns, 1)
        iterations += burst
        burst, following = int(following), GROWTH * following
    return samples.count


def descend(
    problem: Quadratic,
    smoothness: float,
    convexity: float,
    c: np.ndarray,
    start: np.ndarray,
    count: int,
) -> np.ndarray:
    """Return codes after ``count`` iterations of FISTA, whose steps follow from the extreme
    eigenvalues of G.
    """
    root = math.sqrt(convexity / smoothness)
    most = (1 - root) / (1 + root)
    matrix = torch.from_numpy(np.eye(len(problem.gram)) - problem.gram / smoothness)
    threshold = problem.l1 / smoothness
    shift, h = torch.from_numpy(c / smoothness), torch.from_numpy(start)
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
