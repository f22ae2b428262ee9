"""FedAvg+ (Jiang et al. 2019): FedAvg, then every client fine-tunes the global model on its shard.

Training is FedAvg's; only what is deployed differs. Tuning begins at the global model with zero
momentum at every evaluation, so that the training state does not depend on when it is evaluated.
The published FedEM code keeps the momentum and the schedule of the tuned copy between logs, which
makes its numbers depend on the logging frequency; that is not offered here.
"""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Ge, Gt

from mpifed.algorithms.fedavg.fedavg import FedAvg
from mpifed.method import Clients, Draws, Exchange, LocalSolver, Predictor
from mpifed.model import Model


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

    def __init__(
        self,
        model: Model,
        local: LocalSolver,
        *,
        tune_epochs: Annotated[int, Ge(1)] = 1,
        tune_lr: Annotated[float, Gt(0)] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(model, local, **options)
        self.tuner = local.tuner(tune_epochs, tune_lr)

    def deploy(self, state: Any, clients: Clients, draws: Draws) -> Predictor:
        """Every client's copy of the global model, fine-tuned on its shard."""
        models = self.local.with_statistics(state.model, state.optimizer)
        return Predictor(self.tuner.tuned(models, clients, draws))

    def adapt(self, state: Any, clients: Clients, exchange: Exchange, draws: Draws) -> Predictor:
        """Unseen clients fine-tune the global model like all others."""
        return Predictor(self.tuner.tuned(exchange.mean(state.model), clients, draws))
