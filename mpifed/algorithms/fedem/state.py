"""The state of FedEM."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mpifed import state
from mpifed.local.solver import OptimizerState


@dataclass(frozen=True)
class FedEMState:
    """Components, mixture weights and the clients' optimizers.

    Attributes
    ----------
    components : Tensor
        theta, (M, P); under gossip (clients, M, P).
    mixture : Tensor
        pi, (clients, M).
    optimizer : OptimizerState
        SGD buffers of the clients.
    """

    components: Tensor = state.shared()
    mixture: Tensor = state.client()
    optimizer: OptimizerState = state.client()
