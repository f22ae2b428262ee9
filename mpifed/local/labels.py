"""How often the labels occur at each client."""

from __future__ import annotations

import math

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
    own = _counts(clients, max(outputs, 2))
    logs = np.log(np.maximum(own / np.maximum(own.sum(1, keepdims=True), 1), ABSENT))
    found = logs[:, 1:] - logs[:, :1] if outputs == 1 else logs
    return torch.from_numpy(found[:, None]).to(like)


def label_shares(clients: Clients, labels: int, like: Tensor) -> Tensor:
    """Return each client's shares of labels among its training samples, (clients, 1, labels).

    They are equal where a client has no samples.

    Parameters
    ----------
    clients : Clients
        The clients.
    labels : int
        Number of labels.
    like : Tensor
        A tensor of the type and on the device of the result.
    """
    own = _counts(clients, labels)
    all_of_them = own.sum(1, keepdims=True)
    found = np.where(all_of_them > 0, own / np.maximum(all_of_them, 1), 1 / labels)
    return torch.from_numpy(found[:, None]).to(like)


def _counts(clients: Clients, labels: int) -> np.ndarray:
    """How often each client has each label, int64 (clients, labels)."""
    train = clients.shards.train
    owner = np.repeat(np.arange(len(train.counts)), train.counts)
    y = train.y.cpu().numpy()
    y = y.reshape(len(owner), math.prod(y.shape[1:]))
    pairs = (owner[:, None] * labels + y).ravel()
    counts = np.bincount(pairs, minlength=len(train.counts) * labels).reshape(-1, labels)
    return counts[clients.rows]
