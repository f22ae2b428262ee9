"""FedPAC (Xu, Tong and Huang 2023, Algorithm 1): aligned features, and heads that collaborate.

With the body theta, the head phi_i of client i, and its samples D_i, of which a share p_i(k) has
label k, with the mean feature mu_i(k) by the body that the server sent,

    client i   h_i(k) <- p_i(k) mu_i(k),   V_i <- (mean of |f(x)|^2 - |h_i|^2) / |D_i|
               phi_i <- an epoch of steps, theta fixed
               theta_i <- steps on L(x, y) + lambda d(f_i(x), c(y)), phi_i fixed
    server     theta <- sum_i (|D_i| / n) theta_i,  c(k) <- the mean of f_i over samples of label k
               phi_i <- sum_j alpha_ij phi_j, where alpha_i minimises over the simplex
                        sum_j alpha_ij^2 V_j + sum_k |sum_j alpha_ij (h_i(k) - h_j(k))|^2

so that heads are combined where labels and features are alike. d, the mean square of differences,
and V_i were read from the authors' code, which also drops alpha_ij below 0.001; that is left out.
That features are those of the received body is assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from scipy.optimize import nnls
from torch import Tensor

from mpifed import state
from mpifed.algorithms.shared_body.fedper import Parts, unseen_fitter
from mpifed.algorithms.shared_body.fedrep import FedRepState, head_solver
from mpifed.method import (
    Clients,
    Draws,
    Exchange,
    LocalSolver,
    Requirement,
    ServerChannel,
)
from mpifed.model import Model, label_means, label_sums, last_sizes, prototyped


@dataclass(frozen=True)
class FedPACState(FedRepState):
    """The body, the clients' heads, the optimizers of both, and the prototypes."""

    prototypes: Tensor = state.server()  # c, (labels, h + 1); the last number is 1 where known


class FedPAC(Parts[ServerChannel]):
    """FedPAC: a shared body with aligned features, and combinations of the clients' heads.

    Parameters
    ----------
    fedpac_lambda : float
        Strength lambda of the pull to prototypes.
    head_epochs : int
        Epochs of the head in a round; those of the body are ``local.epochs``.
    unseen_epochs : int
        Epochs in which an unseen client fits its head, with the body fixed.
    **options
        Those of ``Parts``.
    """

    requires = (
        Requirement({"local.buffers": "average"}, "whose models take their statistics along"),
    )
    aggregates = "mean_and_sums"
    compressors = "none"
    tasks = ("classification",)

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        fedpac_lambda: Annotated[float, Ge(0)] = 1.0,
        head_epochs: Annotated[int, Ge(1)] = 1,
        unseen_epochs: Annotated[int, Ge(1)] = 10,
        **options: Any,
    ) -> None:
        super().__init__(model, local, **options)
        self.fitter = unseen_fitter(local, unseen_epochs)
        self.head_solver = head_solver(local, head_epochs)
        inputs, outputs = last_sizes(model)
        self.shape = max(outputs, 2), inputs + 1
        pulled = prototyped(model, self.shape, fedpac_lambda)
        self.solver = local.variant(local.purpose, model=pulled, stepping="auto")

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> FedPACState:
        parts = super().init(clients, exchange, draws, dtype)
        of_head = self.head_solver.init(len(clients), 1, dtype)
        prototypes = torch.zeros(self.shape, dtype=dtype, device=clients.device)
        return FedPACState(**vars(parts), of_head=of_head, prototypes=prototypes)

    def round(  # type: ignore[override]
        self, state: FedPACState, clients: Clients, channel: ServerChannel, draws: Draws
    ) -> FedPACState:
        start = self.joined(channel.broadcast(state.body), state.heads)
        weights = self.collaborators(start, clients, channel)
        tuned, of_head = self.head_solver(start, state.of_head, clients, draws, mask=self.head)
        received = channel.broadcast(state.prototypes).flatten(1)[:, None]
        rows = torch.cat([tuned, received], -1)
        rows, optimizer = self.solver(rows, state.optimizer, clients, draws, mask=self.body)
        done = rows[..., : self.model.n_parameters]
        body = channel.average(done[..., self.body], clients.weights, before=state.body)
        sums = channel.send(self.label_sums(done, clients)[..., :-1])
        total = channel.sum(sums, torch.ones(len(clients), dtype=torch.float64))
        prototypes = label_means(total, state.prototypes)
        heads = channel.send(done[..., self.head])
        everyone = np.flatnonzero(channel.round.active)
        position = torch.from_numpy(np.searchsorted(everyone, clients.ids))
        combined = torch.empty_like(heads)
        for participant, alpha in enumerate(weights):
            combined[position == participant] = channel.sum(heads, alpha[position]).to(heads)
        return FedPACState(body, channel.scatter(combined), optimizer, of_head, prototypes)

    def label_sums(self, models: Tensor, clients: Clients) -> Tensor:
        """Return sums over each client's samples of each label: of f(x), 1 and |f(x)|^2."""
        train = clients.shards.train
        return label_sums(self.model, models, train, clients.rows, self.shape[0])

    def collaborators(self, models: Tensor, clients: Clients, server: ServerChannel) -> Tensor:
        """Return alpha, float64 (participants, participants) of all ranks."""
        sums = self.label_sums(models, clients).double()
        count = sums[..., -2].sum(1).clamp(min=1)
        means = (sums[..., :-2] / count[:, None, None]).flatten(1)
        variances = (sums[..., -1].sum(1) / count - means.square().sum(1)) / count
        moments = server.send(torch.cat([means, variances[:, None]], 1).to(models))
        products = server.products(moments[:, :-1]).cpu().numpy()
        spread = server.gather(moments[:, -1])[server.round.active]
        (alpha,) = server.at_server(lambda: [torch.from_numpy(combinations(products, spread))])
        return alpha.cpu()

    def payload(self) -> int:
        labels, inputs = self.shape
        return self.model.n_parameters + labels * (2 * inputs - 1) + 1


def combinations(products: np.ndarray, variances: np.ndarray) -> np.ndarray:
    """Return alpha from the products of all h_i, float64 (n, n), and all V_i, (n,)."""
    n, shares = len(products), np.zeros_like(products)
    for i in range(n):
        apart = products[i, i] - products[i] - products[:, i, None] + products
        # Positive definite whatever is rounded, and whatever an attacker sends.
        matrix = apart + np.diag(np.maximum(variances, 0))
        root = np.linalg.cholesky(matrix + (1e-9 * np.trace(matrix) + 1e-30) * np.eye(n))
        # The minimiser of x'Px / 2 - sum x over x >= 0 is a multiple of alpha.
        alpha, _ = nnls(root.T, np.linalg.solve(root, np.ones(n)))
        shares[i] = alpha / alpha.sum()
    return shares
