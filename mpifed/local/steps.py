"""What both ways of stepping clients are given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from mpifed.data.base import Split
from mpifed.local.adjustments import Adjustment
from mpifed.local.coupling import Coupling
from mpifed.local.minibatches import Work


@dataclass(frozen=True)
class Steps:
    """What the local steps of a round are made from.

    Attributes
    ----------
    train : Split
        Training samples of the hosted clients.
    samples : Tensor
        Rows of ``train`` in the order of visits; see ``minibatches.draw_orders``.
    work : Work
        Steps of each client.
    rates : numpy.ndarray
        Learning rates, float64 (clients, epochs), or (clients, 1) for all epochs.
    done : numpy.ndarray
        Steps before this round that count for the optimizer, int64 (clients,).
    weights : Tensor or None
        q, (components, hosted training samples).
    adjustments : tuple of Adjustment
        Terms that are added to the gradients.
    mask : Tensor or None
        Which parameters are trained, bool (P,); None for all.
    coupling : Coupling or None
        What moves the models of a client together; None trains them apart.
    """

    train: Split
    samples: Tensor
    work: Work
    rates: np.ndarray
    done: np.ndarray
    weights: Tensor | None
    adjustments: tuple[Adjustment, ...]
    mask: Tensor | None
    coupling: Coupling | None = None
