"""Torch modules with mistakes that torch itself does not refuse, as users write them."""

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


class Softmax(Net):
    def forward(self, x):
        return super().forward(x).softmax(-1)


class LogSoftmax(Net):
    def forward(self, x):
        return super().forward(x).log_softmax(-1)


class Sigmoid(Net):
    def forward(self, x):
        return super().forward(x)[..., None].sigmoid().squeeze(-1)


class OwnLoss(Net):
    def __init__(self, data) -> None:
        super().__init__(data)
        self.loss = nn.NLLLoss()


class OwnCriterion(Net):
    def __init__(self, data) -> None:
        super().__init__(data)
        self.criterion = nn.CrossEntropyLoss(label_smoothing=0.1)


class LossMethod(Net):
    def loss(self, outputs, y):
        return nn.functional.mse_loss(outputs, y)


class Doubled(Net):
    def forward(self, x):
        return super().forward(x.double()).float()


class Halved(Net):
    def forward(self, x):
        return self.head(self.body(x.flatten(1)).relu().bfloat16())


class WithoutGradient(Net):
    @torch.no_grad()
    def forward(self, x):
        return super().forward(x)


class Detached(Net):
    def forward(self, x):
        return super().forward(x).detach()


class BodyDetached(Net):
    def forward(self, x):
        return self.head(self.body(x.flatten(1)).relu().detach())


class Keeps(Net):
    """Keeps what it computed last, for its author to look at."""

    def forward(self, x):
        self.features = self.body(x.flatten(1)).relu()
        return self.head(self.features)


def in_double(data) -> nn.Module:
    return Net(data).double()


def in_bfloat16(data) -> nn.Module:
    return Net(data).bfloat16()


def lazy_in_double(data) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(data.n_outputs)).double()


def weight_norm(data) -> nn.Module:
    """With the old function, which sets an attribute that autograd has computed."""
    return nn.Sequential(nn.Flatten(), nn.utils.weight_norm(nn.Linear(64, data.n_outputs)))


def parametrised(data) -> nn.Module:
    norm = nn.utils.parametrizations.weight_norm
    return nn.Sequential(nn.Flatten(), norm(nn.Linear(64, data.n_outputs)))


class InList(Net):
    """Layers that a list hides."""

    def __init__(self, data) -> None:
        super().__init__(data)
        self.layers = [nn.Linear(16, 16), nn.Linear(16, 16)]

    def forward(self, x):
        x = self.body(x.flatten(1))
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(x)


class OnlyInList(nn.Module):
    def __init__(self, data) -> None:
        super().__init__()
        self.layers = [nn.Linear(64, data.n_outputs)]

    def forward(self, x):
        return self.layers[0](x.flatten(1))


class LooseTensor(Net):
    def __init__(self, data) -> None:
        super().__init__(data)
        self.scale = torch.ones(1, requires_grad=True)

    def forward(self, x):
        return self.scale * super().forward(x)


def without_channels(data) -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.LazyLinear(data.n_outputs))


def channels_last(data) -> nn.Module:
    pictures = nn.Unflatten(2, (4, 2))  # (B, 8, 4, 2)
    return nn.Sequential(pictures, nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(24, data.n_outputs))


def codes(data) -> nn.Module:
    layers = (nn.Flatten(), nn.Embedding(20, 4), nn.Flatten(), nn.Linear(256, data.n_outputs))
    return nn.Sequential(*layers)


def narrow(data) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(100, data.n_outputs))


def not_flattened(data) -> nn.Module:
    return nn.Sequential(nn.Linear(64, data.n_outputs))


def one_layer_of_a_column(data) -> nn.Module:
    return nn.Linear(11, data.n_outputs)


def of_pictures_in_colour(data) -> nn.Module:
    layers = (nn.Unflatten(1, (1, 8)), nn.Conv2d(3, 4, 3), nn.Flatten())
    return nn.Sequential(*layers, nn.LazyLinear(data.n_outputs))


def normalises_fewer(data) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.BatchNorm1d(16), nn.LazyLinear(data.n_outputs))


class Steps(nn.Module):
    """A recurrence over rows of 8 numbers that was built for 28."""

    def __init__(self, data) -> None:
        super().__init__()
        self.lstm = nn.LSTM(28, 16, batch_first=True)
        self.head = nn.Linear(16, data.n_outputs)

    def forward(self, x):
        return self.head(self.lstm(x)[0][:, -1])


class NeverCalled(Net):
    def __init__(self, data) -> None:
        super().__init__(data)
        self.unused = nn.LazyLinear(3)


def imaginary(data) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, data.n_outputs, dtype=torch.complex64))


def by_position(data, width) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.Linear(width, data.n_outputs))


def with_default(data, width=16) -> nn.Module:
    return by_position(data, width)


class InPlaceLayer(Net):
    """Changes what the backward pass of exp needs, by a layer that works in place."""

    def __init__(self, data) -> None:
        super().__init__(data)
        self.cut = nn.Dropout(0.5, inplace=True)

    def forward(self, x):
        return self.head(self.cut(self.body(x.flatten(1)).exp()))


class InPlaceSum(Net):
    """Changes what the backward pass of a sigmoid needs."""

    def forward(self, x):
        hidden = self.body(x.flatten(1)).sigmoid()
        hidden += 1
        return self.head(hidden)


def misspelt(data):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, data.n_output))
