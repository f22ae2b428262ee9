"""What a run of FLIX adds to metrics.csv: the objective, and how far it is from its minimum."""

from __future__ import annotations

from torch import Tensor

from mpifed.algorithms.flix.objective import FlixObjective
from mpifed.exchange.measuring import total
from mpifed.federation.clients import Clients


def measured(
    objective: FlixObjective,
    optima: Tensor,
    x: Tensor,
    least: float | None,
    minimiser: Tensor | None,
    clients: Clients,
) -> dict[str, float | None]:
    """f~ at x (P,); with its ``least`` value also the gap from that, and with its one
    ``minimiser`` x* (P,) the mean (1/n) sum_i ||T_i(x) - T_i(x*)||^2. Collective.
    """
    n = len(clients.federation.training)
    losses = objective.losses(optima, x, clients)
    value = float(total(clients, losses[:, None])[0]) / n
    found: dict[str, float | None] = {"objective": value}
    if least is not None:
        found["objective_gap"] = value - least
    if minimiser is not None:
        away = float((x.double() - minimiser).square().sum())
        squares = float(total(clients, objective.squares(clients)[:, None])[0])
        found["deployed_distance"] = squares * away / n
    return found
