"""What corrections ask of mixing matrices and of the rest of a configuration.

The least eigenvalue of symmetric mixing matrices, on which corrections set conditions.

The largest step at which corrected gossip is stable where all clients have the same curvature.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import scipy.sparse
import torch
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import eigsh
from torch import Tensor

import topologies
from mpifed.components.registry import named
from mpifed.errors import InputError
from mpifed.exchange.corrections.base import Correction, Needs, Neighbours, build
from mpifed.federation.clients import Federation

# Nodes up to which all eigenvalues are computed.
DENSE = 1500

# Matrices of a schedule without a period, or with a longer one, that are looked at.
FEW = 8


def least_eigenvalue(schedule: topologies.Schedule) -> float:
    """Return the least eigenvalue of the first few matrices of a symmetric schedule."""
    rounds = min(schedule.period or FEW, FEW)
    return min(_least(schedule.matrix(k)) for k in range(1, rounds + 1))


def _least(matrix: topologies.MixingMatrix) -> float:
    if matrix.n <= DENSE:
        return float(np.linalg.eigvalsh(matrix.to_dense())[0])
    start = np.random.default_rng(0).normal(size=matrix.n)
    return float(eigsh(matrix.to_sparse(), 1, which="SA", v0=start, return_eigenvectors=False)[0])


ORDER: tuple[Needs, ...] = ("positive", "doubly_stochastic", "symmetric", "static", "tree")

# What separates an eigenvalue from a bound that it must not have: even rings have -1/3 itself.
ROUNDING = 1e-9


def fitted(
    section: Any, schedule: topologies.Schedule, federation: Federation
) -> Correction | None:
    """Return the correction that ``section`` asks for, None for ``none``. Collective."""
    correction = build(section)
    if correction is None:
        return None
    name, said = named(section, "exchange.correction")[0], None
    if federation.communicator.rank == 0:
        said = misfit(correction, name, schedule, federation.participation == 1.0)
        bound = correction.least_eigenvalue
        if said is None and bound > -1 and (least := least_eigenvalue(schedule)) < bound + ROUNDING:
            said = (
                f"exchange.correction is '{name}', but the least eigenvalue of W is {least:.6g}; "
                f"it must be above {bound:.6g}; allowed: exact_diffusion, or other weights"
            )
    said = federation.communicator.broadcast_object(said)
    if said is not None:
        raise InputError(said)
    return correction


def mixed_by(
    correction: Correction | None, schedule: topologies.Schedule
) -> tuple[topologies.Schedule, topologies.Schedule | None]:
    """Return the schedules by which a correction mixes; the configured one alone for None."""
    if correction is None:
        return schedule, None
    return correction.mixes(schedule), correction.within(schedule)


def misfit(
    correction: Correction, name: str, schedule: topologies.Schedule, everyone: bool
) -> str | None:
    """Return what is wrong with a schedule for a correction, in a sentence; None if it fits."""
    said, level = f"exchange.correction is '{name}'", ORDER.index(correction.needs)
    first = schedule.matrix(1)
    if level == 0:
        least = float(min(first.self_weights.min(), first.weights.min(initial=1.0)))
        if first.self_weights.min() <= 0 or least < 0:
            return (
                f"{said}, but in round 1 a client's weight for itself is "
                f"{first.self_weights.min():.3g} and the least weight {least:.3g}; it needs "
                "positive weights of clients for themselves, and no negative ones"
            )
        return None
    if not schedule.doubly_stochastic or not (everyone or schedule.symmetric):
        absent = " among those who take part" if schedule.doubly_stochastic else ""
        return (
            f"{said}, but the columns of the mixing matrices do not sum to one{absent}, so that "
            "gossip moves the mean; allowed: symmetric weights, or correction push_sum"
        )
    if level >= 2 and not schedule.symmetric:
        return (
            f"{said}, which needs symmetric mixing matrices, but those of exchange.schedule are "
            "directed; allowed with these: tracking, quasi_global, push_sum"
        )
    if level >= 3 and not (everyone and schedule.period == 1):
        return (
            f"{said}, whose clients need every message of every round; exchange.schedule must be "
            "static, without lost nodes or edges and without local rounds"
        )
    if level == 4 and not is_tree(first):
        used = int(np.count_nonzero(first.weights))
        return (
            f"{said}, which needs a tree, but {used} edges have a weight between {first.n} "
            f"clients, where a tree has {first.n - 1} that connect them all; allowed: topologies "
            "such as path and star, with weights such as metropolis_hastings"
        )
    return None


def is_tree(matrix: topologies.MixingMatrix) -> bool:
    """Return whether the edges that have a weight are those of a tree."""
    if np.count_nonzero(matrix.weights) != matrix.n - 1:
        return False
    return int(connected_components(matrix.to_sparse(), directed=False)[0]) == 1


# Steps between which eta L is looked for, how many lambda, how often the interval is halved.
SMALL, MOST, EIGENVALUES, HALVINGS = 1e-3, 8.0, 17, 40


def largest_step(correction: Correction, least: float) -> float:
    """Return the least upper bound of eta L with which rounds are stable, 0 if there is none."""
    eigenvalues = np.linspace(least, 1, EIGENVALUES)
    if not all(_stable(correction, each, SMALL) for each in eigenvalues):
        return 0.0
    low, high = SMALL, MOST
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        stable = all(_stable(correction, each, middle) for each in eigenvalues)
        low, high = (middle, high) if stable else (low, middle)
    return low


def _stable(correction: Correction, eigenvalue: float, step: float) -> bool:
    columns = torch.eye(1 + correction.width(1), dtype=torch.float64)
    x, kept = columns[:, :1], columns[:, 1:]
    one = np.arange(len(columns))
    scaled = partial(_scaled, eigenvalue)
    neighbours = Neighbours(scaled, scaled, scipy.sparse.eye_array(len(one)), one)
    moved = torch.cat(correction.step(x, (1 - step) * x, kept, neighbours), 1).T
    # What rounds conserve has the eigenvalue 1.
    return float(np.abs(np.linalg.eigvals(moved.numpy())).max()) <= 1 + 1e-6


def _scaled(factor: float, rows: Tensor) -> Tensor:
    return factor * rows
