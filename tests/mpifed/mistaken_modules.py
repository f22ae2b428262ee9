"""Torch modules as users write them."""

from __future__ import annotations

import torch
from torch import nn

THE_MODULE = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


class Net(nn.Module):
    """Two layers for samples of 64 numbers."""

    def __init__(self, data) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(64, 16), nn.Linear(16, data.n_outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(x.flatten(1)).relu())


class Keeps(Net):
    """Keeps what it computed last, for its author to look at."""

    def forward(self, x):
        self.features = self.body(x.flatten(1)).relu()
        return self.head(self.features)


def lazy_in_double(data) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(data.n_outputs)).double()


def weight_norm(data) -> nn.Module:
    """With the old function, which sets an attribute that autograd has computed."""
    return nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, data.n_outputs)))


def parametrised(data) -> nn.Module:
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(nn.Flatten(), norm(nn.Linear(64, data.n_outputs)))
