"""Black-box local solvers of the M-step, and how good one is (Marfoq et al. 2021, App. H).

Assumption 9 asks of a local solver that for some alpha < 1, all clients t and components m

    Phi_tm(theta_tm) - Phi_tm* <= alpha (Phi_tm(theta_m) - Phi_tm*)

where it starts at theta_m and ends at theta_tm, and Phi_tm is the risk weighted by q.
"""

from __future__ import annotations

from typing import cast

from torch import Tensor

from mpifed.algorithms.fedem.surrogate import PartialSurrogate, Solver
from mpifed.exchange.measuring import largest
from mpifed.federation.clients import Clients
from mpifed.local.weighted_optima import WeightedRisks
from mpifed.models.base import Model
from mpifed.models.linear import Linear

SMALLEST_GAP = 1e-9
"""Share of Phi below which a gap to Phi* counts as closed: rounding would decide the ratio."""


def weighted_risks(
    model: Model, clients: Clients, surrogate: PartialSurrogate, ridge: float
) -> WeightedRisks:
    """Return Phi_tm of the clients; ``check_exact`` has accepted the model."""
    assert surrogate.weights is not None
    return WeightedRisks(cast(Linear, model), clients, surrogate.weights, ridge)


def newton(model: Model, clients: Clients, ridge: float) -> Solver:
    """Return the exact minimiser of Phi_tm, by Newton's method, as a black box of Algorithm 3."""

    def minimisers(start: Tensor, surrogate: PartialSurrogate) -> Tensor:
        return weighted_risks(model, clients, surrogate, ridge).minimisers(start)

    return minimisers


def local_improvement(
    risks: WeightedRisks, start: Tensor, found: Tensor, clients: Clients
) -> float:
    """Return the largest alpha of Assumption 9 over all clients and components. Collective.

    Parameters
    ----------
    risks : WeightedRisks
        Phi_tm.
    start, found : Tensor
        Where the local solver began and ended, (clients, M, P).
    clients : Clients
        The clients hosted here.

    Returns
    -------
    float
        0 for an exact solver, 1 for one that stays where it is; components that began at their
        minimum do not count.
    """
    best = risks.losses(risks.minimisers(start))
    before, after = risks.losses(start) - best, risks.losses(found) - best
    counts = before > SMALLEST_GAP * best.abs().clamp(min=SMALLEST_GAP)
    ratios = (after.clamp(min=0) / before).where(counts, before.new_zeros(()))
    return largest(clients, ratios.flatten())
