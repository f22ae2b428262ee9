"""Scafflix: Scaffnew on the FLIX objective (Yi, Condat and Richtarik, TMLR 2025).

Client i has F_i(x) = f_i(T_i(x)), T_i(x) = alpha_i x + (1 - alpha_i) x_i*, with the gradient
alpha_i grad f_i(T_i(x)) and the smoothness alpha_i^2 L_i. Scaffnew (ProxSkip, Mishchenko et al.
2022) on the F_i with a step gamma_i / alpha_i^2 of each client's own is

    xhat_i <- x_i - (gamma_i / alpha_i) (grad f_i(T_i(x_i)) - h_i)
    with probability p, by one coin for all clients:
        x_i <- sum_j w_j xhat_j / sum_j w_j,   w_j = alpha_j^2 / gamma_j
        h_i <- h_i + (p alpha_i / gamma_i) (x_i - xhat_i)
    otherwise x_i <- xhat_i, and h_i stays

The means are weighted by 1 / step, as the proximal map of consensus is in the norm of the steps; so
the alpha_i h_i add up to zero. They become the gradients of the F_i at the minimiser. Each gamma_i
may be 1 / L_i, however the L_j of others differ, and the error falls by 1 - min(gamma_i mu_i, p^2)
a step, as ProxSkip's does. A round is the steps up to the next communication. A client with alpha_i
of 0 has nothing to move.

The algorithm is derived here from ProxSkip; the paper's text and code were not at hand, so that its
stochastic gradients and defaults are not followed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from annotated_types import Gt, Le
from torch import Tensor

import mpifed.algorithms.flix.theorems as theory
from mpifed import state as states
from mpifed.algorithms.flix.descent import Descent, FlixState
from mpifed.method import (
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Not,
    Requirement,
    ServerChannel,
)
from mpifed.model import Model


@dataclass(frozen=True)
class ScafflixState(FlixState):
    """The state of ``flix``, with the control variates h_i."""

    variates: Tensor = states.client()


class Scafflix(Descent[ServerChannel]):
    """Scafflix: corrected local steps on the FLIX objective, and communication now and then.

    ``step`` is gamma_i, the same for all clients; None is 1 / L_i of each.

    Parameters
    ----------
    scafflix_p : float
        Probability p of a communication behind a step.
    **options
        Those of ``Descent``.
    """

    requires = (
        *Descent.requires,
        Requirement(
            {
                "algorithm.step": Not("line_search"),
                "algorithm.stop_at": None,
                "algorithm.gradient": "exact",
            },
            "whose clients take several exact steps of a known length",
        ),
        Requirement({"participation:inclusion": 1.0}, "which needs all clients"),
    )
    compressors = "none"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        scafflix_p: Annotated[float, Gt(0), Le(1)] = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(model, local, **options)
        self.p = scafflix_p

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> ScafflixState:
        begun = super().init(clients, exchange, draws, dtype)
        return ScafflixState(**vars(begun), variates=torch.zeros_like(begun.optima))

    def descend(
        self, state: FlixState, clients: Clients, channel: ServerChannel, draws: Draws, first: bool
    ) -> FlixState:
        assert isinstance(state, ScafflixState)
        alpha = torch.from_numpy(self.objective.alpha(clients.ids))
        scale = alpha * self.inverse_steps(state)  # alpha_i / gamma_i
        moved, h = channel.broadcast(state.model)[:, 0], state.variates
        size = torch.where(scale > 0, 1 / scale, 0 * scale)[:, None].to(moved)
        for _ in range(int(draws.stream("coin").geometric(self.p))):
            gradients = self.objective.local_gradients(state.optima, moved, clients, draws)
            moved = moved - size * (gradients - h)
        mass = alpha * scale
        every = float(clients.total(mass[:, None])[0])
        arrived = channel.send(moved)
        if not every > 0:
            return state
        x = channel.sum(arrived, mass / every).to(state.model)
        variates = h + (self.p * scale)[:, None].to(moved) * (x - moved)
        return replace(state, model=x[None], variates=variates)

    def inverse_steps(self, state: FlixState) -> Tensor:
        """Return 1 / gamma_i, float64 (clients,)."""
        if self.step is None:
            return state.smoothness
        return torch.full_like(state.smoothness, 1 / float(state.step))

    def proven_step(self, c: theory.Constants) -> float:
        """Return the server's gamma, the inverse of the mean of the alpha_i^2 / gamma_i."""
        return 1 / c.l_alpha

    def predicted_rounds(
        self, state: FlixState, clients: Clients, exchange: Exchange, c: theory.Constants
    ) -> list[str]:
        """Nothing: the theorem bounds an error in which the control variates count, too."""
        return []
