"""Some coordinates of every client's gradient, for compressors that send only these."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from mpifed.local.linear_objective import SparseObjective
from mpifed.local.objective import Objective
from mpifed.sparse_rows import gathered, places


def partial_gradients(
    objective: Objective, parameters: Tensor, columns: np.ndarray
) -> Tensor | None:
    """Return some coordinates of the gradients of f_i at w_i.

    They are bit for bit those of ``objective.gradients``. With sparse products and one output only
    these columns are computed.

    Parameters
    ----------
    objective : Objective
        The f_i.
    parameters : Tensor
        w_i, (clients, P).
    columns : numpy.ndarray
        Coordinates of each client, int64 (clients, k).

    Returns
    -------
    Tensor or None
        (clients, k); None where another coordinate may be infinite or NaN.
    """
    if not isinstance(objective, SparseObjective) or objective.model.n_outputs > 1:
        whole = objective.gradients(parameters)
        return gathered(whole, columns) if math.isfinite(float(whole.sum())) else None
    slopes = objective.shared_slopes(parameters)
    if not math.isfinite(float(slopes.sum())):
        return None
    # With one output the parameters have the order of the design's columns.
    at = places(columns, parameters.shape[1])
    back = torch.from_numpy(objective.backward[at.ravel()] @ slopes.numpy()).view(columns.shape)
    return back.add_(objective.regulariser.gradient(gathered(parameters, columns)))
