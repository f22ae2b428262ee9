"""What clients predict with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor


@dataclass(frozen=True)
class Predictor:
    """What clients deploy: a mixture of M models each; see ``checked_predictor``.

    Attributes
    ----------
    parameters : Tensor or None
        (M, P) for all clients, or (clients, M, P), also where M is 1; None if nothing is predicted.
    mixture : Tensor or None
        Weights (clients, M), or None where M is 1.
    results : mapping of str to Tensor
        Further numbers of each client, (clients, ...), for ``clients.h5``.
    gate : callable or None
        Where the weights depend on the input: it takes the position of a client and inputs
        (B, *input_shape), and returns (M, B). ``mixture`` then has mean weights, for the record.
    local_predictor : callable, optional
        ``local_predictor(i)`` is one more predictor of the i-th client, a torch module that maps a
        batch to outputs and is no row of parameters (its nearest neighbours, say). Its weight is
        the last one of ``mixture``, which then is (clients, M + 1).
    """

    parameters: Tensor | None
    mixture: Tensor | None = None
    results: Mapping[str, Tensor] = field(default_factory=dict)
    gate: Callable[[int, Tensor], Tensor] | None = None
    local_predictor: Callable[[int], torch.nn.Module] | None = None

    def parameters_of(self, client: int) -> Tensor:
        """Return the models of a client, (M, P)."""
        assert self.parameters is not None
        return self.parameters if self.parameters.dim() == 2 else self.parameters[client]

    def mixture_of(self, client: int) -> Tensor | None:
        """Return the weights of a client, (M,), or None."""
        return None if self.mixture is None else self.mixture[client]

    def weights_of(self, client: int, x: Tensor) -> Tensor | None:
        """Return the weights of a client on inputs (B, *input_shape): (M,), (M, B) or None."""
        return self.mixture_of(client) if self.gate is None else self.gate(client, x)
