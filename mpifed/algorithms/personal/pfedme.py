"""pFedMe (T Dinh, Tran and Nguyen 2020, Algorithm 1): personal models by Moreau envelopes.

Clients minimise, through the shared w, the envelopes of their risks,

    F_i(w) = min_theta f_i(theta) + (lambda / 2) ||theta - w||^2

whose gradient is lambda (w - theta_i(w)). From w_i = w a client repeats, R times,

    theta_i <- theta_i - eta_p (grad f_i(theta_i; xi) + lambda (theta_i - w_i))     K times, one xi
    w_i <- w_i - eta lambda (w_i - theta_i)

and the server moves w to (1 - beta) w + beta mean of w_i. theta_i is the client's model. In the
published code of FedEM, theta_i is pulled to w itself, and w is the mean of the theta_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Ge, Gt
from torch import Tensor

from mpifed import state
from mpifed.algorithms.personal.shared_model import ALIKE, Weights, combined, copies
from mpifed.method import (
    Algorithm,
    Channel,
    Clients,
    Coupling,
    Draws,
    Exchange,
    LocalSolver,
    Minibatch,
    Not,
    OptimizerState,
    Predictor,
    Proximal,
    Requirement,
    initial_models,
)
from mpifed.model import Model

Positive = Annotated[float, Gt(0)]


@dataclass(frozen=True)
class PFedMeState:
    """The shared model w, the clients' theta_i, and the optimizers that step these."""

    model: Tensor = state.shared()  # (1, P); under gossip (clients, 1, P)
    personal: Tensor = state.client()  # (clients, 1, P)
    optimizer: OptimizerState = state.client()


@dataclass
class Envelope(Coupling):
    """What a client does to (theta_i, w_i) on one minibatch."""

    strength: float
    eta: float
    warm_start: bool
    steps: int

    def move(self, batch: Minibatch) -> None:
        theta, w = batch.rows.unbind(1)
        for k in range(self.steps):
            if k == 0 and not self.warm_start:
                theta.copy_(w)
            numbers = (gradient := batch.gradient(theta, 0)).shape[1]
            gradient.add_((theta - w)[:, :numbers], alpha=self.strength)
            batch.step(gradient, 0)  # Alg. 1, line 7, inexactly
        w[:, :numbers] -= self.eta * self.strength * (w - theta)[:, :numbers]  # line 8
        w[:, numbers:] = theta[:, numbers:]


class PFedMe(Algorithm[Channel]):
    """pFedMe: a shared model, and personal ones that minimise their own risks near it.

    Parameters
    ----------
    pfedme_lambda : float
        Strength lambda of the pull of theta_i to w_i.
    pfedme_eta : float
        Step size eta of w_i.
    inner_steps : int
        Steps K of theta_i on one minibatch.
    beta : float
        Share of the mean in the server's new model; above 1 it is extrapolated.
    warm_start : bool
        Whether theta_i begins on a minibatch where it ended on the one before, not at w_i.
    pfedme_variant : {'envelope', 'prox_to_average'}
        ``prox_to_average`` is FedEM's code, which reads no eta, ``inner_steps`` or ``warm_start``.
    client_weights : {'uniform', 'samples'}
        Weights of the server's average: equal, as in Algorithm 1, or n_t / n.
    """

    requires = (
        ALIKE,
        Requirement(
            {
                "exchange.correction:within_steps": (None, False),
                "exchange.correction:chooses": (None, False),
            },
            "whose clients move the model by steps of its own rule",
        ),
        Requirement(
            {"algorithm.beta": 1.0},
            "where models must be averages of each round",
            {"privacy.observers": Not("none"), "exchange": "gossip"},
        ),
    )

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        pfedme_lambda: Positive = 15.0,
        pfedme_eta: Positive = 0.005,
        inner_steps: Annotated[int, Ge(1)] = 5,
        beta: Positive = 1.0,
        warm_start: bool = True,
        pfedme_variant: Literal["envelope", "prox_to_average"] = "envelope",
        client_weights: Weights = "uniform",
    ) -> None:
        self.model, self.local, self.weights = model, local, client_weights
        self.strength, self.beta, self.variant = pfedme_lambda, beta, pfedme_variant
        self.envelope = Envelope(pfedme_lambda, pfedme_eta, warm_start, inner_steps)

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> PFedMeState:
        model = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client=False)
        optimizer = self.local.init(len(clients), 1, dtype)
        return PFedMeState(model, copies(model, len(clients)).clone(), optimizer)

    def remarks(self, state: PFedMeState, clients: Clients, exchange: Exchange) -> list[str]:
        """Warn of steps whose eigenvalue 1 - lr (lambda + curvature) is below -1, so that theta_i
        diverges for any convex risk; with momentum m the bound 2 becomes 2 (1 + m).
        """
        options = self.local.options
        step, bound = options.lr * self.strength, 2 * (1 + options.momentum)
        if options.optimizer != "sgd" or step <= bound:
            return []
        return [
            f"warning: local.lr times algorithm.pfedme_lambda is {step:.3g}; steps of theta "
            f"diverge above {bound:.3g}: a smaller local.lr or pfedme_lambda is needed"
        ]

    def round(
        self, state: PFedMeState, clients: Clients, channel: Channel, draws: Draws
    ) -> PFedMeState:
        w = channel.broadcast(state.model)  # Alg. 1, line 3
        theta, sent, optimizer = self._trained(w, state.personal, state.optimizer, clients, draws)
        mean = combined(sent, clients, channel, state.model, self.weights)
        model = mean if self.beta == 1 else state.model + self.beta * (mean - state.model)
        model[..., self.local.n_trained :] = mean[..., self.local.n_trained :]  # statistics
        return PFedMeState(model, theta, optimizer)

    def _trained(
        self, w: Tensor, theta: Tensor, optimizer: OptimizerState, clients: Clients, draws: Draws
    ) -> tuple[Tensor, Tensor, OptimizerState]:
        """A client's steps from w: theta_i, what it sends, and its optimizer."""
        if self.variant == "prox_to_average":
            pulls = [Proximal(w, self.strength)]
            theta, optimizer = self.local(theta, optimizer, clients, draws, adjustments=pulls)
            return theta, theta, optimizer
        start = torch.cat([w, w], 1)  # theta_i begins a round at w
        rows, optimizer = self.local(start, optimizer, clients, draws, coupling=self.envelope)
        return rows[:, :1].clone(), rows[:, 1:], optimizer

    def deploy(self, state: PFedMeState, clients: Clients, draws: Draws) -> Predictor:
        """Client i deploys theta_i."""
        return Predictor(state.personal)

    def adapt(
        self, state: PFedMeState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients do what others do in a round (Marfoq et al. 2021, App. J.3)."""
        w = copies(exchange.mean(state.model), len(clients))
        fresh = self.local.init(len(clients), 1, w.dtype)
        return Predictor(self._trained(w, w, fresh, clients, draws)[0])
