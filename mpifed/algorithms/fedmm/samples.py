"""What a sample is to a surrogate: its inputs, and its target where the surrogate learns one."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Description, Split
from mpifed.federation.clients import Clients
from mpifed.local.sampling import chosen

FEW = 8
"""Samples on which a surrogate is tried before the run begins."""


def sample_of(data: Description, with_target: bool) -> Description:
    """The data as ``inputs_of`` gives them, with or without targets behind the inputs."""
    width = math.prod(data.input_shape)
    if not with_target:
        return replace(data, input_shape=(width,), n_classes=0, task="unlabelled")
    targets = {"unlabelled": 0, "classification": 1}.get(data.task, data.n_classes)
    return replace(data, input_shape=(width + targets,))


def shards_of(clients: Clients) -> Split:
    """The whole training shards of ``clients``."""
    train = clients.shards.train
    if len(clients) == len(train.counts):
        return train
    spans = zip(clients.starts, clients.starts + clients.n_train, strict=True)
    return chosen(train, [np.arange(first, last) for first, last in spans])


def few_of(clients: Clients) -> Split:
    """The first training samples, at most ``FEW``, of the first of ``clients``."""
    first, count = clients.starts[0], min(FEW, int(clients.n_train[0]))
    return chosen(clients.shards.train, [np.arange(first, first + count)])


def shard_of(split: Split, row: int) -> Split:
    """The samples of the client at ``row`` of a split."""
    part = slice(int(split.offsets[row]), int(split.offsets[row + 1]))
    return Split(split.x[part], split.y[part], np.array([0, part.stop - part.start]))


def inputs_of(split: Split, with_target: bool) -> Tensor:
    """z of every sample: its x, and its y as the last columns on request; (samples, dim)."""
    x, y = split.x.flatten(1).double(), split.y.double()
    if not with_target or (y.dim() == 2 and not y.shape[1]):
        return x
    return torch.cat([x, y if y.dim() == 2 else y[:, None]], 1)
