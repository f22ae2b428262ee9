"""Fine-tuning of what clients deploy."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from mpifed.federation.clients import Clients, Draws
from mpifed.local.solver import LocalSolver
from mpifed.method.predictor import Predictor


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
