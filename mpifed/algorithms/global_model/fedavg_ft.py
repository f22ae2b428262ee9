"""FedAvg+ (Jiang et al. 2019): FedAvg, then every client fine-tunes the global model on its shard.

Training is FedAvg's; only what is deployed differs. Tuning begins at the global model with zero
momentum at every evaluation, so that the training state does not depend on when it is evaluated.
The published FedEM code keeps the momentum and the schedule of the tuned copy between logs, which
makes its numbers depend on the logging frequency; that is not offered here.
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt
from torch import Tensor

from mpifed.algorithms.base import Predictor, StepScale
from mpifed.algorithms.global_model.fedavg import FedAvg, FedAvgState
from mpifed.exchange.base import Exchange
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSolver
from mpifed.models.base import Model


class FedAvgFineTuned(FedAvg):
    """FedAvg+: FedAvg with the global model fine-tuned by each client before it is deployed.

    Parameters
    ----------
    tune_epochs : int
        Epochs of fine-tuning before a client's model is deployed.
    tune_lr : float, optional
        Learning rate of the fine-tuning. None is ``local.lr``, without its schedule.
    **options
        Those of ``FedAvg``.
    """

    learns = "one model, fine-tuned by each client"
    sends = "its model"

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        model_init: Literal["shared", "per_client"] = "shared",
        gossip_step_scale: StepScale = "normalised",
        tune_epochs: Annotated[int, Ge(1)] = 1,
        tune_lr: Annotated[float, Gt(0)] | None = None,
    ) -> None:
        super().__init__(model, local, model_init=model_init, gossip_step_scale=gossip_step_scale)
        self.tuner = local.variant(
            "fine-tuning",
            "algorithm.tune_epochs",
            epochs=tune_epochs,
            steps=None,
            lr=local.options.lr if tune_lr is None else tune_lr,
            lr_schedule="constant",
        )

    def _tuned(self, model: Tensor, clients: Clients, draws: Draws) -> Predictor:
        """``model`` (1, P) or (clients, 1, P), fine-tuned by every client."""
        start = model.expand(len(clients), 1, self.model.n_parameters)
        fresh = self.tuner.init(len(clients), 1, model.dtype)
        return Predictor(self.tuner(start, fresh, clients, draws)[0])

    def deploy(self, state: FedAvgState, clients: Clients, draws: Draws) -> Predictor:
        """Every client's copy of the global model, fine-tuned on its shard, (clients, 1, P)."""
        own = self.local.own(state.model, state.optimizer)
        return self._tuned(own, clients, draws)

    def adapt(
        self, state: FedAvgState, clients: Clients, exchange: Exchange, draws: Draws
    ) -> Predictor:
        """Unseen clients fine-tune the global model like all others."""
        return self._tuned(exchange.mean(state.model), clients, draws)
