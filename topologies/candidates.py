"""Weights that the solver in fastest_mixing.py compares, and how fast each of them mixes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from topologies.edges import at_most_one
from topologies.formulas import (
    best_constant_weights,
    larger_degrees,
    max_degree_weights,
    metropolis_hastings_weights,
)
from topologies.projections import Pattern

Array = NDArray[np.float64]

POWERS, ROUNDING = 12, 1e-9


def formula_rules(pattern: Pattern) -> list[tuple[float, Array]]:
    """Return the weights of rules with a formula, each with a lower bound on its SLEM.

    An approximate solution may be slower by less than the tolerance than a rule that is optimal on
    this graph; with the rules among the candidates the result is never behind any of them.

    Parameters
    ----------
    pattern : Pattern
        Where weights may be.

    Returns
    -------
    list of (float, ndarray of float64, shape (m,))
        Bounds and weights.
    """
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
    """Return the best of a candidate and the rules, and the rules that are not computed yet.

    Few rules can be better than an iterate, and only those need their eigenvalues.

    Parameters
    ----------
    pattern : Pattern
        Where weights may be.
    best, weights
        The SLEM of the candidate, and its weights (m,).
    rules : list of (float, ndarray)
        As of ``formula_rules``.

    Returns
    -------
    tuple
        SLEM, weights and rules.
    """
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
    """Return the SLEM of weights (m,), 0 where it is rounding.

    Parameters
    ----------
    pattern : Pattern
        Where weights may be.
    weights : ndarray of float64, shape (m,)
        The weights.
    """
    matrix = pattern.dense(weights, 1 - pattern.node_sums(weights))
    value = float(np.abs(np.linalg.eigvalsh(matrix - 1 / pattern.n)).max())
    return 0.0 if value < pattern.n * np.finfo(float).eps else value
