"""Some coordinates of every client's gradient, for those who send no others."""

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
    """The gradients of f_i at w_i, (clients, P), in ``columns``, int64 (clients, k): (clients, k).

    Bit for bit those of ``objective.gradients``; sparse products of one output go back for these
    columns alone. None where a number in another column may not be finite.
    """
    if not isinstance(objective, SparseObjective) or objective.model.n_outputs > 1:
        whole = objective.gradients(parameters)
        return gathered(whole, columns) if math.isfinite(float(whole.sum())) else None
    slopes = objective.shared_slopes(parameters)
    if not math.isfinite(float(slopes.sum())):
        return None
    # With one output the parameters stand in the order of the design's columns.
    at = places(columns, parameters.shape[1])
    back = torch.from_numpy(objective.backward[at.ravel()] @ slopes.numpy()).view(columns.shape)
    return back.add_(objective.regulariser.gradient(gathered(parameters, columns)))
