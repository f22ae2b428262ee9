"""Torch modules as users write them, named by ``model.name=network_modules:...``."""

from __future__ import annotations

import math

import torch
from torch import nn


def cnn(data, *, dropout: float = 0.0, norm: bool = False) -> nn.Module:
    """A small CNN, for images of 8 x 8."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Unflatten(1, (1, 8, 8)),
        nn.Conv2d(1, 6, 3),
        nn.BatchNorm2d(6) if norm else nn.Identity(),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout(dropout),
        nn.Flatten(),
        nn.Linear(54, data.n_outputs),
    )


class Recurrent(nn.Module):
    """Reads the rows of an image one after the other."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 5, 2, batch_first=True)
        self.head = nn.Linear(5, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x.flatten(1).unflatten(1, (8, 8)))[0][:, -1])


def lstm(data) -> nn.Module:
    return Recurrent(data.n_outputs)


class Normalised(nn.Module):
    """Batch normalisation of vectors, which one sample alone cannot have."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(64)
        self.head = nn.Linear(64, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(x.flatten(1)))


def normalised_mlp(data, *, width: int = 5) -> nn.Module:
    """One hidden layer with batch normalisation, for samples of any shape."""
    inputs = math.prod(data.input_shape)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(inputs, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, data.n_outputs),
    )


def normalised(data) -> nn.Module:
    return Normalised(data.n_outputs)


class Constants(nn.Module):
    """A fixed projection, a mask, and one trained layer."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.projection = nn.Linear(64, 16).requires_grad_(False)
        self.register_buffer("mask", torch.rand(16) < 0.5)
        self.head = nn.Linear(16, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.projection(x.flatten(1)) * self.mask)


def constants(data) -> nn.Module:
    return Constants(data.n_outputs)


def lazy(data) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(7), nn.ReLU(), nn.LazyLinear(data.n_outputs))


THE_ONE = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))


def same_module(data) -> nn.Module:
    return THE_ONE


def no_argument() -> nn.Module:
    return THE_ONE


def wrong_width(data) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(63, data.n_outputs))


def wrong_outputs(data) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7))


def in_place(data) -> nn.Module:
    return nn.Sequential(nn.Hardtanh(0, 0.5, inplace=True), nn.Flatten(), nn.Linear(64, 10))


def not_in_place(data) -> nn.Module:
    return nn.Sequential(nn.Hardtanh(0, 0.5), nn.Flatten(), nn.Linear(64, 10))


class Squeezed(nn.Module):
    """Loses the axis of samples where there is one only."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x.flatten(1)).squeeze()


def squeezed(data) -> nn.Module:
    return Squeezed()


def torn(data) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Sigmoid(), Doubles())


class Doubles(nn.Module):
    """Changes what the layer before needs for its gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mul_(2)


class Codes(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.codes = nn.Embedding(20, 10, sparse=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.codes(x.flatten(1).long()).mean(1)


def sparse(data) -> nn.Module:
    return Codes()


def untrained(data) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10).requires_grad_(False))


def pair(data) -> nn.Module:
    class Pair(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(64, 10)

        def forward(self, x: torch.Tensor):
            return self.head(x.flatten(1)), None

    return Pair()


def number(data):
    return 3
