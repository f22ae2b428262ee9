"""FedFomo (Zhang et al. 2021): clients take what is good for them of others' models.

With the model theta_i that client i began a round with, the trained models theta'_n of itself and
of M others that it asks for, and its loss L_i on validation samples,

    w_n     <- (L_i(theta_i) - L_i(theta'_n)) / ||theta'_n - theta_i||
    theta_i <- theta_i + sum_n max(w_n, 0) (theta'_n - theta_i) / sum_n max(w_n, 0)
    P_in    <- P_in + w_n

Where no w_n is positive, theta_i stays. The M others are chosen one by one: with probability
epsilon, which falls by a constant in every round, at random, else by the largest affinity P_in.

That a client's own model is among them, and how epsilon falls, were read from the authors' code,
which adds w_n / |sum of w| to P_in. Clients without validation samples take training samples.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from mpifed import state
from mpifed.method import (
    Algorithm,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    OptimizerState,
    Predictor,
    ServerChannel,
    initial_models,
)
from mpifed.model import Model, held_out_risks, row_norms


@dataclass(frozen=True)
class FedFomoState:
    """The clients' models, and how much each has gained from those of others."""

    models: Tensor = state.client()  # theta_i, (clients, 1, P)
    affinity: Tensor = state.client()  # P_in, float64 (clients, training clients)
    optimizer: OptimizerState = state.client()


class FedFomo(Algorithm[ServerChannel]):
    """FedFomo: a model of each client, moved towards those that lower its validation loss.

    Parameters
    ----------
    fomo_models : int
        M, the models of others that a client is sent in a round.
    fomo_epsilon : float
        Probability epsilon that one of them is drawn at random, in round 1.
    fomo_decay : float
        By how much epsilon falls from round to round.
    """

    aggregates = "sums"
    compressors = "none"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        fomo_models: Annotated[int, Ge(0)] = 4,
        fomo_epsilon: Annotated[float, Ge(0), Le(1)] = 0.3,
        fomo_decay: Annotated[float, Ge(0)] = 0.05,
    ) -> None:
        self.model, self.local = model, local
        self.count, self.epsilon, self.decay = fomo_models, fomo_epsilon, fomo_decay

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedFomoState:
        models = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client=False)
        rows = models.expand(len(clients), 1, self.model.n_parameters).clone()
        affinity = rows.new_zeros(len(rows), len(clients.federation.training), dtype=torch.float64)
        return FedFomoState(rows, affinity, self.local.init(len(clients), 1, dtype))

    def round(
        self, state: FedFomoState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedFomoState:
        trained, optimizer = self.local(state.models, state.optimizer, clients, draws)
        sent, affinity = channel.send(trained), state.affinity.cpu().clone()
        everyone = np.flatnonzero(channel.round.active)
        columns = np.searchsorted(clients.federation.training, everyone)
        requests = self.requested_models(affinity[:, columns].numpy(), everyone, clients, draws)
        # Books that every client is sent the models of others that it asked for.
        others = min(self.count, len(everyone) - 1)
        channel.scatter(trained.expand(-1, others, -1))
        before = self.losses(state.models, clients, np.arange(len(clients)))
        moves, total = torch.zeros_like(trained), torch.zeros(len(clients), dtype=torch.float64)
        for column, number, takers in zip(columns, everyone, requests.T, strict=True):
            only = torch.from_numpy((clients.ids == number).astype(float))
            other = channel.sum(sent, only).to(trained)  # reaches all ranks
            who = np.flatnonzero(takers)
            way = other - state.models[who]
            gain = before[who] - self.losses(other, clients, who)
            length = row_norms(way[:, 0, : self.local.n_trained]).cpu()
            weight = torch.where(length > 0, gain / length, 0.0)
            affinity[who, column] += weight
            share = weight.clamp(min=0)
            total[who] += share
            moves[who] += share[:, None, None].to(way) * way
        scale = torch.where(total > 0, 1 / total, 0.0)[:, None, None].to(moves)
        return FedFomoState(state.models + scale * moves, affinity.to(state.affinity), optimizer)

    def requested_models(
        self, affinity: np.ndarray, everyone: np.ndarray, clients: Clients, draws: Draws
    ) -> np.ndarray:
        """Return which participants' models each client here gets, bool (clients, participants)."""
        requests = clients.ids[:, None] == everyone
        epsilon = self.epsilon - self.decay * (draws.round - 1)
        for row, gains, client in zip(requests, affinity, clients.ids, strict=True):
            stream = draws.stream("models of others", int(client))
            best, drawn = (
                np.lexsort((stream.random(len(row)), -gains)),
                stream.permutation(len(row)),
            )
            for _ in range(min(self.count, len(row) - 1)):
                order = drawn if stream.random() < epsilon else best
                row[order[np.argmin(row[order])]] = True  # the first that is not chosen yet
        return requests

    def losses(self, models: Tensor, clients: Clients, who: np.ndarray) -> Tensor:
        """Return L_i of some clients, float64; ``models`` are (1, P) or rows of all of them."""
        return held_out_risks(self.model, models, clients, who)[:, 0]

    def deploy(self, state: FedFomoState, clients: Clients, draws: Draws) -> Predictor:
        """Client i deploys theta_i."""
        return Predictor(state.models, results={"affinity": state.affinity})
