"""FedProto (Tan et al. 2022, Algorithm 1): clients share the prototypes of labels, and no model.

With the representation f_i(x) by the model of client i, and its samples D_ij of label j,

    client i   w_i <- steps on L_S(F_i(x), y) + lambda d(f_i(x), Cbar(y))              (eq. 7)
               C_i(j) <- mean of f_i over D_ij                                         (eq. 3)
    server     Cbar(j) <- sum_i |D_ij| C_i(j) / sum_i |D_ij|                           (eq. 6)
    predicts   argmin_j ||f_i(x) - Cbar(j)||                                           (eq. 4)

d is the mean square of differences, sample by sample, as in published code. Eq. 6 also divides by
the number of clients, which is left out, since Cbar would be no mean. A label that nobody has shown
yet pulls nothing and is not predicted. A representation is what the last layer is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

import torch
from annotated_types import Ge
from torch import Tensor, nn

from mpifed import state
from mpifed.method import (
    Algorithm,
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    OptimizerState,
    Predictor,
    Requirement,
    ServerChannel,
    initial_models,
)
from mpifed.model import (
    Model,
    label_means,
    label_sums,
    last_sizes,
    prototyped,
    representation,
)


@dataclass(frozen=True)
class FedProtoState:
    """The clients' models, and the prototypes."""

    models: Tensor = state.client()  # w_i, (clients, 1, P)
    prototypes: Tensor = state.server()  # (labels, h + 1); the last number is 1 where it is known
    optimizer: OptimizerState = state.client()


class Nearest(nn.Module):
    """The squared distances to prototypes, negative: logits of the labels."""

    def __init__(self, model: Model, row: Tensor, prototypes: Tensor) -> None:
        super().__init__()
        self.model, self.row, self.prototypes = model, row, prototypes

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch, (B, labels); of label 1 alone where there are two."""
        points, defined = self.prototypes[:, :-1], self.prototypes[:, -1] > 0
        size = self.model.scored_together
        z = torch.cat([representation(self.model, self.row, part)[0] for part in x.split(size)])
        exact = "donot_use_mm_for_euclid_dist"
        logits = -torch.cdist(z, points, compute_mode=exact).square().masked_fill(~defined, 1e30)
        return logits[:, 1:] - logits[:, :1] if len(points) == 2 else logits


class FedProto(Algorithm[ServerChannel]):
    """FedProto: models of the clients' own, whose representations of a label come together.

    Parameters
    ----------
    fedproto_lambda : float
        Strength lambda of the pull to prototypes; 0 is training alone.
    deployed : {'prototypes', 'model'}
        What clients predict with: the nearest prototype, or the model's own last layer.
    """

    requires = (
        Requirement({"local.buffers": "average"}, "whose models take their statistics along"),
    )
    aggregates = "sums"
    compressors = "none"
    tasks = ("classification",)

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        fedproto_lambda: Annotated[float, Ge(0)] = 1.0,
        deployed: Literal["prototypes", "model"] = "prototypes",
    ) -> None:
        self.model, self.local = model, local
        self.columns = ("nll",) if deployed == "prototypes" else ()
        inputs, outputs = last_sizes(model)
        self.shape = max(outputs, 2), inputs + 1
        pulled = prototyped(model, self.shape, fedproto_lambda)
        self.solver = local.variant(local.purpose, model=pulled, stepping="auto")

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedProtoState:
        models = initial_models(self.model, 1, clients, exchange, draws, dtype, per_client=False)
        rows = models.expand(len(clients), 1, self.model.n_parameters).clone()
        optimizer = self.local.init(len(clients), 1, dtype)
        return FedProtoState(rows, models.new_zeros(self.shape), optimizer)

    def round(
        self, state: FedProtoState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedProtoState:
        received = channel.broadcast(state.prototypes).flatten(1)[:, None]
        rows = torch.cat([state.models, received], -1)
        rows, optimizer = self.solver(rows, state.optimizer, clients, draws)
        models = rows[..., : self.model.n_parameters].clone()
        train, everyone = clients.shards.train, torch.ones(len(clients), dtype=torch.float64)
        sums = label_sums(self.model, models, train, clients.rows, self.shape[0])
        total = channel.sum(channel.send(sums[..., :-1]), everyone)
        return FedProtoState(models, label_means(total, state.prototypes), optimizer)  # eq. 6

    def deploy(self, state: FedProtoState, clients: Clients, draws: Draws) -> Predictor:
        """The nearest prototype in each client's representation, or its model."""
        if not self.columns:
            return Predictor(state.models)
        mixture = torch.tensor([0.0, 1.0]).to(state.models).expand(len(clients), 2)
        return Predictor(state.models, mixture, local_predictor=partial(self._nearest, state))

    def _nearest(self, state: FedProtoState, i: int) -> Nearest:
        return Nearest(self.model, state.models[i], state.prototypes)

    def learnt(self, state: FedProtoState, exchange: Exchange) -> dict[str, Tensor]:
        """``prototypes``, (labels, h + 1), the last number being 1 where one is known."""
        return {"prototypes": state.prototypes}

    def payload(self) -> int:
        return self.shape[0] * self.shape[1]
