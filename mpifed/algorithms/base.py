"""What an algorithm is to the engine.

A class whose first two parameters are the model and the local solver and whose keyword-only
parameters are its options. A round is one communication:

    inspect  refuses other runs that this one is to take something from and cannot (optional);
             before anything is computed, and not where a run goes on
    init     the state before round 1, from the seed: cheap, its shapes serve a resumed run too
    prepare  work of the clients before round 1, on their own (optional); checkpointed, so that a
             resumed run does not repeat it; what lasts calls ``stopping.heed`` now and then
    round    one communication round, on the clients that take part in it
    deploy   each client's predictor, for evaluation
    adapt    the predictor of a client that took no part in training (optional)
    measure  what the method adds to metrics.csv, under the names in ``columns`` (optional)
    learnt   what was learnt and belongs to no client, by name and in its own shape; clients.h5 has
             it in the group ``learnt`` (optional; collective)
    remarks  lines for the log before the first round: constants, what theory foretells (optional)

Attributes say what an algorithm is like where it is not like most: ``exchanges`` it goes with
(``("server",)``), ``compressors`` of its messages ("any", "unbiased" or "none"), ``communicates =
False`` (it sends nothing), ``uses_model = False`` (what it trains is no predictor), ``steps_alone =
True`` (the server moves even in a round in which no client takes part), ``online = True`` (it draws
fresh samples, by ``Shards.fresh``), ``step_option`` (what to make smaller where numbers grow too
large; ``local.lr`` without it), ``local_options`` (what it reads of the section ``local``; all of
it without).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from mpifed.exchange.base import Channel, Exchange
from mpifed.federation.clients import Clients, Draws
from mpifed.models.base import Model

StepScale = Literal["paper", "normalised", "none"]


@dataclass(frozen=True)
class Predictor:
    """What clients deploy: a mixture of M models each.

    ``parameters`` is (M, P), the same for all, or (clients, M, P); None where nothing is predicted.
    ``mixture`` is (clients, M), or None where M is 1. ``results`` are further numbers of each
    client, (clients, ...), that ``clients.h5`` shows.
    """

    parameters: Tensor | None
    mixture: Tensor | None = None
    results: Mapping[str, Tensor] = field(default_factory=dict)

    def parameters_of(self, client: int) -> Tensor:
        assert self.parameters is not None
        return self.parameters if self.parameters.dim() == 2 else self.parameters[client]

    def mixture_of(self, client: int) -> Tensor | None:
        return None if self.mixture is None else self.mixture[client]


class Algorithm(Protocol):
    """A federated method; see the module's docstring. States are dataclasses (``mpifed.state``)."""

    def init(
        self, clients: Clients, exchange: Exchange, draws: Draws, dtype: torch.dtype
    ) -> Any: ...

    def round(self, state: Any, clients: Clients, channel: Channel, draws: Draws) -> Any: ...

    def deploy(self, state: Any, clients: Clients, draws: Draws) -> Predictor: ...

    def payload(self) -> int:
        """Numbers that a client sends in one round."""


def initial_models(
    model: Model,
    count: int,
    clients: Clients,
    exchange: Exchange,
    draws: Draws,
    dtype: torch.dtype,
    per_client: bool,
) -> Tensor:
    """``count`` models as shared state; drawn once for all, or anew by every client."""
    if not per_client:
        return exchange.spread(_draw(model, count, draws, -1, dtype))
    rows = [_draw(model, count, draws, int(client), dtype) for client in clients.ids]
    if not rows:
        return torch.empty(0, count, model.n_parameters, dtype=dtype)
    return torch.stack(rows)


def _draw(model: Model, count: int, draws: Draws, client: int, dtype: torch.dtype) -> Tensor:
    models = [model.init(draws.stream(f"model {m}", client)) for m in range(count)]
    return torch.from_numpy(np.stack(models)).to(dtype)


def refuse_per_client(configuration: Any, option: str) -> str | None:
    """Refuses models drawn by every client where a server holds the only copy."""
    if (
        configuration.algorithm[option] == "per_client"
        and configuration.exchange["name"] == "server"
    ):
        return (
            f"algorithm.{option} is 'per_client', but under a server there is one shared copy; "
            "allowed with exchange=server: shared"
        )
    return None


def step_scale(clients: Clients, channel: Channel, rule: StepScale) -> np.ndarray | None:
    """Factors of the learning rate under gossip, float64 (clients,); None for ones.

    ``paper``: n_t / n (Marfoq et al. 2021, Alg. 4, line 19), with which gossip follows the same
    weighted objective as the server; ``normalised``: T n_t / n, the same with mean one; ``none``:
    1, as in the published code. Under a server the average carries the weights.
    """
    if rule == "none" or not channel.shared_is_rows:
        return None
    weights = clients.weights.numpy()
    return weights if rule == "paper" else weights * len(clients.federation.training)
