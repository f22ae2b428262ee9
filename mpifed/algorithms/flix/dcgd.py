"""DCGD on the FLIX objective (Gasanov et al. 2021, Algorithm 2): compressed gradients.

    1  for k = 0, 1, ...
    2    broadcast x
    3    every client i
    4      compute alpha_i grad f_i(T_i(x))
    5      g_i = C_i(alpha_i grad f_i(T_i(x)))
    6    g = (1/n) sum_i g_i
    7    x <- x - gamma g

It ends in a floor that falls with gamma omega / n (Theorem 3); ``diana`` has none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mpifed.algorithms.flix.descent import (
    Descent,
    MessageRule,
    Problem,
    report_theorem_three,
    send_gradients,
    stepped,
)
from mpifed.algorithms.flix.objective import FlixObjective
from mpifed.algorithms.flix.options import FlixState, StepSize
from mpifed.exchange.base import ServerChannel
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSolver
from mpifed.models.base import Model
from mpifed.theory import flix as theory


class CompressedGradients(MessageRule[FlixState, ServerChannel]):
    """Clients send their compressed gradients, g_i."""

    def start(self, state: FlixState) -> FlixState:
        return state

    def step(
        self,
        objective: FlixObjective,
        state: FlixState,
        clients: Clients,
        channel: ServerChannel,
        draws: Draws,
        first: bool,
    ) -> FlixState:
        channel.broadcast(state.model)  # line 2
        x, x_i = state.model[0], state.optima
        sent = send_gradients(objective, x_i, x, None, clients, channel, draws)  # lines 4 and 5
        g = channel.sum(sent, clients.sampled_weights)  # line 6
        return replace(state, model=stepped(state.model, float(state.step), g))  # line 7

    def step_size(self, c: theory.Constants, how: StepSize) -> float:
        """Theorems 3, 5 and 7."""
        return theory.dcgd_step(c, how.setting)

    def predicted_rounds(self, problem: Problem) -> list[str]:
        """The floor of Theorem 3."""
        return report_theorem_three(problem)


class Dcgd(Descent[FlixState, ServerChannel]):
    """DCGD: gradient descent on the FLIX objective with unbiased compression of gradients.

    Parameters
    ----------
    **options
        Those of ``Descent``.
    """

    learns = "one model, mixed with local optima"
    sends = "its compressed gradient"
    exchanges = ("server",)
    averages_by = None
    compressors = "unbiased"

    def __init__(self, model: Model, local: LocalSolver, **options: Any) -> None:
        super().__init__(model, local, CompressedGradients(), **options)
