"""FLIX (Gasanov et al. 2021): explicit mixtures of each client's own optimum and one shared model.

    T_i(x) = alpha_i x + (1 - alpha_i) x_i,   minimise f~(x) = (1/n) sum_i f_i(T_i(x))

where x_i = argmin f_i is found before the first round, without communication. This is Algorithm 1,
distributed gradient descent on f~:

    1  for k = 0, 1, ...
    2    every client i
    3      g_i = alpha_i grad f_i(T_i(x))
    4    x <- x - (gamma / n) sum_i g_i

With ``start: average`` the first round is the one-shot average of Theorem 1, from which gradient
descent starts. ``dcgd`` and ``diana`` compress the gradients.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mpifed.algorithms.flix.descent import Descent, MessageRule, Problem, report_theorem_two
from mpifed.algorithms.flix.objective import FlixObjective
from mpifed.algorithms.flix.options import FlixState, StepSize
from mpifed.exchange.base import Channel, Exchange
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSolver
from mpifed.models.base import Model
from mpifed.theory import flix as theory


class WholeMessages(MessageRule[FlixState, Channel]):
    """Clients take the step and send their models, which the exchange averages."""

    def start(self, state: FlixState) -> FlixState:
        return state

    def step(
        self,
        objective: FlixObjective,
        state: FlixState,
        clients: Clients,
        channel: Channel,
        draws: Draws,
        first: bool,
    ) -> FlixState:
        x = channel.broadcast(state.model)
        g = objective.gradients(state.optima, x[:, 0], clients, draws)  # line 3
        moved = x - float(state.step) * g[:, None]
        weights = clients.equal_weights
        return replace(state, model=channel.average(moved, weights, before=state.model))  # line 4

    def variance(self, exchange: Exchange, size: int) -> float:
        """Return omega; 0 under gossip and with error feedback, which make up for what is lost."""
        compressor = exchange.compressor
        if compressor is None or exchange.shared_is_rows or not compressor.unbiased:
            return 0.0
        return compressor.omega(size)

    def step_size(self, c: theory.Constants, how: StepSize) -> float:
        """Theorem 2; with unbiased compression gradient descent is DCGD."""
        return theory.dcgd_step(c, how.setting) if c.omega else theory.dgd_step(c)

    def unproven(self, exchange: Exchange) -> list[str]:
        return ["partial participation"] if exchange.federation.inclusion < 1 else []

    def predicted_rounds(self, problem: Problem) -> list[str]:
        """Rounds that Theorem 2 needs, which is about whole messages."""
        return report_theorem_two(problem) if problem.exchange.compressor is None else []


class Flix(Descent[FlixState, Channel]):
    """FLIX by distributed gradient descent: mixtures of a local optimum and a shared model.

    Parameters
    ----------
    **options
        Those of ``Descent``.
    """

    learns = "one model, mixed with local optima"
    sends = "its model after a step"

    def __init__(self, model: Model, local: LocalSolver, **options: Any) -> None:
        super().__init__(model, local, WholeMessages(), **options)
