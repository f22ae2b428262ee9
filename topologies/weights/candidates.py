"""What the solvers of fastest mixing compare: rules with a formula, SLEMs and lower bounds of them.

For any symmetric Y with Y 1 = 0 and nuclear norm at most 1, and any z with z_i + z_j <= 2 Y_ij on
edges and z_i <= Y_ii, every admissible W has

    ||W - J||_2 >= <Y, W> >= sum_i z_i W_ii + sum_edges (z_i + z_j) W_ij = sum_i z_i .

An approximate solution may be slower by less than the tolerance than a rule that is optimal on this
graph. With the rules among the candidates the result is never behind any of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topologies.matrix import at_most_one
from topologies.weights.formulas import (
    best_constant_weights,
    larger_degrees,
    max_degree_weights,
    metropolis_hastings_weights,
)
from topologies.weights.patterns import Pattern

Array = NDArray[np.float64]

# Products with W that bound its SLEM from below: they cost far less than eigenvalues, and a rule
# whose bound is above the best SLEM so far needs none.
POWERS = 12

# What rounding may have added to this bound, relative to it.
ROUNDING = 1e-9


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
