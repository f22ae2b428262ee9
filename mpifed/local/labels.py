"""How often the labels occur at each client."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from mpifed.federation.clients import Clients

ABSENT = 1e-20
"""Share of a label that a client lacks: its logit falls by 46, and its gradient vanishes."""


def log_counts(clients: Clients, outputs: int, like: Tensor) -> Tensor:
    """Return log n_mc of each client's training labels, up to a constant, (clients, 1, outputs).

    For one output, the logit of label 1, it is log n_m1 - log n_m0.

    Parameters
    ----------
    clients : Clients
        The clients.
    outputs : int
        Outputs of the model.
    like : Tensor
        A tensor of the type and on the device of the result.
    """
    train, labels = clients.shards.train, max(outputs, 2)
    owner = np.repeat(np.arange(len(train.counts)), train.counts)
    y = train.y.cpu().numpy().reshape(len(owner), -1)
    pairs = (owner[:, None] * labels + y).ravel()
    counts = np.bincount(pairs, minlength=len(train.counts) * labels).reshape(-1, labels)
    own = counts[clients.rows]
    logs = np.log(np.maximum(own / own.sum(1, keepdims=True), ABSENT))
    found = logs[:, 1:] - logs[:, :1] if outputs == 1 else logs
    return torch.from_numpy(found[:, None]).to(like)
