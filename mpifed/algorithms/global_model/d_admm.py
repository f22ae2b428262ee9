"""D-ADMM (Shi, Ling, Yuan, Wu and Yin 2014; Mateos, Bazerque and Giannakis 2010, DLM's exact form).

    minimise sum_i f_i(x_i) subject to x_i = x_j on every edge {i, j}

By the alternating direction method of multipliers, with the weights W[i, j] as those of edges,

    x_i <- argmin f_i(x) + <alpha_i, x> + c ||x - (x_i + sum_j W[i, j] x_j) / 2||^2     (eq. 13)
    alpha_i <- alpha_i + c (x_i - sum_j W[i, j] x_j)                                    (eq. 14)

with alpha = 0 at first. A weight W[i, i] counts as an edge of i to itself, which is a proximal
term. The alpha_i add up to zero; where nothing moves, alpha_i = -grad f_i(x).

The minimiser is that of the local steps, which begin at the last x_i, so that the limit is exact
however few they are, if they converge at all: for equal quadratic risks local.lr below
4 / (2 L + 3 c (1 - l)), with l the least eigenvalue of W, and several steps also below
2 / (L + 2 c). Any c > 0 converges, linearly where risks are strongly convex (Theorem 1), with W
symmetric.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Gt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.global_model.one_model import GlobalModel
from mpifed.method import (
    Channel,
    Clients,
    Draws,
    LocalSolver,
    OptimizerState,
    Proximal,
    Requirement,
    Shift,
)
from mpifed.model import Model


@dataclass(frozen=True)
class DADMMState:
    """The clients' models, where they are pulled to, and their multipliers."""

    model: Tensor = state.shared()  # x, (clients, 1, P)
    anchor: Tensor = state.client()  # (x_i + (W x)_i) / 2, (clients, 1, P)
    multiplier: Tensor = state.client()  # alpha_i, (clients, 1, P)
    optimizer: OptimizerState = state.client()


class DADMM(GlobalModel[Channel]):
    """D-ADMM: clients minimise their risk with a pull to their neighbours, and multipliers.

    Parameters
    ----------
    admm_c : float
        Penalty c of disagreement.
    """

    requires = (
        Requirement(
            {"exchange.asynchrony": "none", "exchange.correction": None},
            "which corrects gossip itself, in rounds",
        ),
    )
    aggregates = "sums"
    exchanges = ("gossip",)
    compressors = "none"
    state_class = DADMMState

    def __init__(
        self, model: Model, local: LocalSolver, *, admm_c: Annotated[float, Gt(0)] = 1.0
    ) -> None:
        self.model, self.local, self.c = model, local, admm_c

    def variables(self, model: Tensor, n_clients: int) -> tuple[Tensor, ...]:
        return model, torch.zeros_like(model)

    def round(
        self, state: DADMMState, clients: Clients, channel: Channel, draws: Draws
    ) -> DADMMState:
        terms = [Shift(state.multiplier), Proximal(state.anchor, 2 * self.c)]
        start, optimizer = state.model, state.optimizer
        x, optimizer = self.local(start, optimizer, clients, draws, adjustments=terms)  # eq. 13
        mixed = channel.average(x, clients.equal_weights, before=state.model)
        multiplier = state.multiplier + self.c * (x - mixed)  # eq. 14
        return DADMMState(x, (x + mixed) / 2, multiplier, optimizer)
