"""FLIX by FedAvg (Gasanov et al. 2022, as the authors train networks): local steps on f_i(T_i(x)).

    T_i(x) = alpha_i x + (1 - alpha_i) x_i

Before the first round client i finds x_i by local SGD from the first model. In a round it starts
with x_i^0 = x, takes the local steps of FedAvg on f_i(T_i(.)), by minibatches,

    x_i^{s+1} = x_i^s - eta alpha_i grad f_i(T_i(x_i^s))

and sends x_i^S; the server averages with weights n_i / n, and moves x by any rule. What a client
deploys, y = T_i(x_i^s), moves by SGD on f_i at the rate eta alpha_i^2:

    y^{s+1} = y^s - eta alpha_i^2 grad f_i(y^s),   y^0 = T_i(x);   x_i^S = x + (y^S - y^0) / alpha_i

so these steps are taken. With alpha_i = 1 they are FedAvg's, bit for bit; with 0, x stays.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, Gt
from torch import Tensor

from mpifed import state as states
from mpifed.algorithms.flix.objective import Fraction, Mixtures, check_coefficients
from mpifed.method import (
    Algorithm,
    Channel,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    OptimizerState,
    Predictor,
    Requirement,
    StepScale,
    initial_models,
    over_rates,
)
from mpifed.model import Model


@dataclass(frozen=True)
class FlixFedAvgState:
    """x, the clients' own models x_i and their optimizers."""

    model: Tensor = states.shared()  # (1, P); under gossip (clients, 1, P)
    optima: Tensor = states.client()  # (clients, P)
    optimizer: OptimizerState = states.client()


class FlixFedAvg(Algorithm[Channel]):
    """FLIX by FedAvg: local SGD on mixtures of each client's own model and a shared one.

    Momentum, ``local.weight_decay`` and ``local.sam_radius`` act on the deployed T_i(x), as parts
    of f_i. Steps in float32 lose digits where alpha_i is far below 0.01. Running statistics are
    sent as they are.

    Parameters
    ----------
    flix_alpha : float or list of float
        alpha_i: one coefficient for all clients, or one for each.
    optimum_epochs : int
        Epochs of a client's local SGD from the first model, by which it finds x_i.
    optimum_lr : float, optional
        Learning rate of this SGD. None is ``local.lr``, without its schedule.
    gossip_step_scale : {'paper', 'normalised', 'none'}
        How the learning rate depends on a client's share of the samples under gossip, as for
        FedAvg: n_t / n, the same with mean one, or 1.
    """

    requires = (
        Requirement(
            {"local.optimizer": "sgd"}, "whose steps on deployed models must be those on x"
        ),
        Requirement(
            {"exchange.correction:within_steps": (None, False)},
            "whose steps begin elsewhere than the correction does",
        ),
    )

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        flix_alpha: Fraction | list[Fraction] = 0.5,
        optimum_epochs: Annotated[int, Ge(1)] = 25,
        optimum_lr: Annotated[float, Gt(0)] | None = None,
        gossip_step_scale: StepScale = "normalised",
    ) -> None:
        self.model, self.local = model, local.scaled(gossip_step_scale)
        self.mixtures = Mixtures(flix_alpha)
        self.alone = local.variant(
            "local optima",
            "algorithm.optimum_epochs",
            epochs=optimum_epochs,
            steps=None,
            lr=local.options.lr if optimum_lr is None else optimum_lr,
            lr_schedule="constant",
        )

    @staticmethod
    def validate(options: dict[str, Any], clients: int) -> None:
        """Check ``flix_alpha`` against the clients."""
        check_coefficients(options["flix_alpha"], clients)

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FlixFedAvgState:
        x = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client=False)
        optima = x.expand(len(clients), 1, x.shape[-1])[:, 0].clone()
        return FlixFedAvgState(x, optima, self.local.init(len(clients), 1, dtype))

    def prepare(
        self, state: FlixFedAvgState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> FlixFedAvgState:
        """Each client's x_i, which no T_i needs where all alpha_i are 1."""
        if np.all(np.equal(self.mixtures.coefficients, 1)):
            return state
        return replace(state, optima=self.alone.tuned(state.optima[:, None], clients, draws)[:, 0])

    def round(
        self, state: FlixFedAvgState, clients: Clients, channel: Channel, draws: Draws
    ) -> FlixFedAvgState:
        if self.mixtures.is_local:
            return state
        x = channel.broadcast(state.model)
        begun = self.mixtures.mixed(state.optima, x[:, 0], clients)[:, None]  # y^0
        rates = channel.rates(clients.weights, self.local.step_scale)
        scale = self.mixtures.squares(clients).numpy() * (1 if rates is None else rates)
        ended, optimizer = self.local(
            begun, state.optimizer, clients, draws, step_scale=scale
        )  # y^S
        alpha = torch.from_numpy(self.mixtures.alpha(clients.ids)).to(x)[:, None, None]
        trained = self.local.n_trained
        moved = torch.where(alpha == 1, ended, x + over_rates(ended - begun, alpha))
        sent = torch.cat([moved[..., :trained], ended[..., trained:]], -1)
        model = channel.average(sent, clients.weights, before=state.model)
        return replace(state, model=model, optimizer=optimizer)

    def deploy(self, state: FlixFedAvgState, clients: Clients, draws: Draws) -> Predictor:
        """Client i predicts with T_i(x)."""
        x = state.model.expand(len(clients), 1, state.model.shape[-1])
        mixed = self.mixtures.mixed(state.optima, x[:, 0], clients)[:, None]
        alpha = torch.from_numpy(self.mixtures.alpha(clients.ids))
        models = self.local.with_statistics(mixed, state.optimizer)
        return Predictor(models, results={"flix_alpha": alpha})

    def payload(self) -> int:
        """The size of x; 0 where all alpha_i are 0, since then nothing is sent."""
        return 0 if self.mixtures.is_local else self.model.n_parameters
