"""Samples as a surrogate sees them: inputs, and targets where the surrogate learns them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Description, Split
from mpifed.federation.clients import Clients, Draws
from mpifed.local.sampling import batches, chosen

FEW = 8
"""Samples on which a surrogate is tried before the run begins."""


def sample_of(data: Description, with_target: bool) -> Description:
    """Return the description of the data as ``inputs_of`` gives them.

    Parameters
    ----------
    data : Description
        The data of the run.
    with_target : bool
        Whether targets follow the inputs.

    Returns
    -------
    Description
        With ``input_shape`` (dim,).
    """
    width = math.prod(data.input_shape)
    if not with_target:
        return replace(data, input_shape=(width,), n_classes=0, task="unlabelled")
    targets = {"unlabelled": 0, "classification": 1}.get(data.task, data.n_classes)
    return replace(data, input_shape=(width + targets,))


def shards_of(clients: Clients) -> Split:
    """Return the whole training shards of ``clients``."""
    train = clients.shards.train
    if len(clients) == len(train.counts):
        return train
    spans = zip(clients.starts, clients.starts + clients.n_train, strict=True)
    return chosen(train, [np.arange(first, last) for first, last in spans])


def samples_of_round(clients: Clients, draws: Draws, batch: int | None, online: bool) -> Split:
    """Return what each of ``clients`` sees in a round.

    Parameters
    ----------
    clients : Clients
        The participants hosted here.
    draws : Draws
        The random numbers of the round.
    batch : int or None
        Samples of each client; None for its whole shard.
    online : bool
        Whether the batch is drawn anew from the data set's distribution.

    Returns
    -------
    Split
        The samples, client after client.
    """
    if online:
        assert clients.shards.fresh is not None
        return clients.shards.fresh(clients.ids, draws.round, batch or 1)
    if batch is None:
        return shards_of(clients)
    return chosen(clients.shards.train, batches(clients, draws, "samples", batch))


def few_of(clients: Clients) -> Split:
    """Return the first training samples, at most ``FEW``, of the first of ``clients``."""
    first, count = clients.starts[0], min(FEW, int(clients.n_train[0]))
    return chosen(clients.shards.train, [np.arange(first, first + count)])


def inputs_of(split: Split, with_target: bool) -> Tensor:
    """Return z of every sample: x, then y as the last columns if ``with_target``: (samples, dim).

    Examples
    --------
    >>> split = Split(torch.ones(1, 2), torch.tensor([3]), np.array([0, 1]))
    >>> inputs_of(split, with_target=True)
    tensor([[1., 1., 3.]], dtype=torch.float64)
    """
    x, y = split.x.flatten(1).double(), split.y.double()
    if not with_target or (y.dim() == 2 and not y.shape[1]):
        return x
    return torch.cat([x, y if y.dim() == 2 else y[:, None]], 1)
