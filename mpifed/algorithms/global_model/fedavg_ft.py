"""FedAvg+ (Jiang et al. 2019): FedAvg, then every client fine-tunes the global model on its shard.

Training is FedAvg's; only what is deployed differs. Tuning begins at the global model with zero
momentum at every evaluation, so that the training state does not depend on when it is evaluated.
The published FedEM code keeps the momentum and the schedule of the tuned copy between logs, which
makes its numbers depend on the logging frequency; that is not offered here.
"""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import Ge, Gt
from torch import Tensor

from mpifed.algorithms.base import Predictor
from mpifed.algorithms.global_model.fedavg import FedAvg
from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSolver
from mpifed.models.base import Model


def tuner_of(local: LocalSolver, epochs: int, lr: float | None) -> LocalSolver:
    """Return the solver of ``tune_epochs`` and ``tune_lr``."""
    rate = local.options.lr if lr is None else lr
    changes: dict[str, Any] = {"epochs": epochs, "steps": None, "lr": rate}
    return local.variant("fine-tuning", "algorithm.tune_epochs", lr_schedule="constant", **changes)


def tuned(
    tuner: LocalSolver, models: Tensor, clients: Clients, draws: Draws, mask: Tensor | None = None
) -> Predictor:
    """Return ``models`` (1, P) or (clients, 1, P), fine-tuned by every client from no momentum."""
    start = models.expand(len(clients), 1, models.shape[-1])
    fresh = tuner.init(len(clients), 1, models.dtype)
    return Predictor(tuner(start, fresh, clients, draws, mask=mask)[0])


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
        self.tuner = tuner_of(local, tune_epochs, tune_lr)

    def predictor(self, models: Tensor, clients: Clients, draws: Draws) -> Predictor:
        """Every client's copy of the global model, fine-tuned on its shard, (clients, 1, P)."""
        return tuned(self.tuner, models, clients, draws)
