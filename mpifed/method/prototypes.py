"""Prototypes: mean representations of the samples of a label, over all clients."""

from __future__ import annotations

import torch
from torch import Tensor

from mpifed.exchange.base import ServerChannel
from mpifed.federation.clients import Clients
from mpifed.models.base import Model
from mpifed.models.heads import last_sizes, representation


def label_sums(model: Model, models: Tensor, clients: Clients, labels: int) -> Tensor:
    """Return sums over each client's samples of each label: of z, 1 and |z|^2.

    Tensor of (clients, labels, h + 2), with the representations z by the client's row of
    ``models``, (clients, 1, P).
    """
    inputs, _ = last_sizes(model)
    all_sums = models.new_zeros(len(clients), labels, inputs + 2)
    for sums, row, client in zip(all_sums, models, clients.rows, strict=True):
        samples = clients.shards.train.of_client(client)
        parts = zip(*(a.split(model.scored_together) for a in (samples.x, samples.y)), strict=True)
        for x, y in parts:
            z = representation(model, row, x)[0]
            squares = z.square().sum(1, keepdim=True)
            sums.index_add_(0, y, torch.cat([z, torch.ones_like(squares), squares], 1))
    return all_sums


def new_prototypes(before: Tensor, sums: Tensor, channel: ServerChannel) -> Tensor:
    """Return prototypes, (labels, h + 1), from clients' sums of z and 1. Collective."""
    everyone = torch.ones(len(sums), dtype=torch.float64)
    total = channel.sum(channel.send(sums), everyone)
    means = (total / total[:, -1:].clamp(min=1)).to(before)
    return torch.where(total[:, -1:] > 0, means, before)
