"""Small networks for samples of six numbers, one of each kind that devices treat differently."""

from __future__ import annotations

import torch
from torch import nn


class Plain(nn.Module):
    """A convolution, with a scale that is not trained and a constant."""

    def __init__(self, outputs):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([2.0]), requires_grad=False)
        self.register_buffer("shift", torch.tensor([0.5]))
        self.convolution = nn.Conv2d(1, 3, 2)
        self.output = nn.Linear(6, outputs)

    def forward(self, x):
        images = x.view(-1, 1, 2, 3) * self.scale + self.shift
        return self.output(torch.relu(self.convolution(images)).flatten(1))


class Recurrent(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.lstm = nn.LSTM(1, 3, batch_first=True)
        self.output = nn.Linear(3, outputs)

    def forward(self, x):
        return self.output(self.lstm(x.unsqueeze(-1))[0][:, -1])


def plain(data):
    return Plain(data.n_outputs)


def normalised(data):
    """Batch normalisation, and no dropout, which a GPU draws from numbers of its own."""
    return nn.Sequential(
        nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, data.n_outputs)
    )


def recurrent(data):
    return Recurrent(data.n_outputs)


def dropping(data):
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, data.n_outputs))
