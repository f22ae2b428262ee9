"""Black-box local solvers of the M-step, and how good one is (Marfoq et al. 2021, App. H).

Assumption 9 asks of a local solver that for some alpha < 1, all clients t and components m

    Phi_tm(theta_tm) - Phi_tm* <= alpha (Phi_tm(theta_m) - Phi_tm*)

where it starts at theta_m and ends at theta_tm, and Phi_tm is the risk weighted by q.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

from torch import Tensor

from mpifed.algorithms.fedem.surrogate import PartialSurrogate, Solver
from mpifed.exchange.measuring import largest
from mpifed.federation.clients import Clients, Draws
from mpifed.federation.participation import shortens_rounds
from mpifed.local.solver import LocalSGD, OptimizerState
from mpifed.local.weighted_optima import WeightedRisks, check_exact
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


def refuse_steps_of_newton(configuration: Any) -> str | None:
    """Return why an exact M-step does not fit what asks for local steps, or None."""
    options = configuration.algorithm.options
    if options.get("local_solver") != "newton":
        return None
    scale = options.get("gossip_step_scale")
    if configuration.exchange.name == "gossip" and scale != "none":
        return (
            f"algorithm.gossip_step_scale is '{scale}', but algorithm.local_solver=newton has no "
            "learning rate to scale, so that all clients count alike under gossip; allowed with "
            "it: algorithm.gossip_step_scale=none"
        )
    if shortens_rounds(configuration.participation):
        return (
            "participation.late is 'partial', but algorithm.local_solver=newton takes no local "
            "steps that could be cut short; allowed: miss"
        )
    return None


@dataclass(frozen=True)
class MStep:
    """The M-step of the components: local steps, or exact minimisers.

    Attributes
    ----------
    model : Model
        The model of all components.
    local : LocalSGD
        Takes local steps; its weight decay is the ridge of exact minimisers.
    is_exact : bool
        Whether components are minimised by Newton's method.
    is_recorded : bool
        Whether its improvement is recorded, which needs exact minimisers too.

    Raises
    ------
    InputError
        If exact minimisers are needed of a model that has none.
    """

    model: Model
    local: LocalSGD
    is_exact: bool
    is_recorded: bool

    def __post_init__(self) -> None:
        if self.is_exact or self.is_recorded:
            asks = "local_solver=newton" if self.is_exact else "record_improvement=true"
            check_exact(self.model, self.ridge, f"algorithm.{asks}")

    @property
    def ridge(self) -> float:
        """Factor of (1 / 2) ||theta||^2 in Phi_tm."""
        return self.local.options.weight_decay

    def black_box(self, clients: Clients) -> Solver | None:
        """Return the exact minimiser of Phi_tm for Algorithm 3, or None for local steps."""

        def newton(start: Tensor, surrogate: PartialSurrogate) -> Tensor:
            return weighted_risks(self.model, clients, surrogate, self.ridge).minimisers(start)

        return newton if self.is_exact else None

    def improvement(
        self,
        components: Tensor,
        optimizer: OptimizerState,
        surrogate: PartialSurrogate,
        clients: Clients,
        draws: Draws,
    ) -> float:
        """Return alpha of the M-step from ``components``, which is not kept. Collective."""
        start = components.expand(len(clients), *components.shape[-2:])
        solver = self.black_box(clients)
        if solver is None:
            found, _ = self.local(start, optimizer, clients, draws, surrogate.weights)
        else:
            found = solver(start, surrogate)
        risks = weighted_risks(self.model, clients, surrogate, self.ridge)
        return local_improvement(risks, start, found, clients)
