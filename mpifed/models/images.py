"""Samples as images: which axis has the channels, and batches in the layout of convolutions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import pad

from mpifed.data.base import Description
from mpifed.data.images import channel_axis
from mpifed.errors import InputError
from mpifed.io.weights import load_weights
from mpifed.models.losses import check_numbers


@dataclass(frozen=True)
class Images:
    """The images of a data set."""

    channels: int
    height: int
    width: int
    axis: int | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return a batch (B, *input_shape) as (B, channels, height, width)."""
        if self.axis is None:
            return x.unsqueeze(1)
        return x.movedim(3, 1) if self.axis == 2 else x


def images_of(data: Description, model: str, least: int = 1) -> Images:
    """Find the channels of the samples."""
    shape = data.input_shape
    check_numbers(data, model)
    if len(shape) not in (2, 3):
        raise InputError(
            f"model '{model}' needs images, (height, width), (channels, height, width) or (height, "
            f"width, channels), but '{data.source}' has samples of shape {shape}; reshape them to "
            "one of these, or use mlp or linear"
        )
    axis = channel_axis(shape)
    channels = 1 if axis is None else shape[axis]
    height, width = (size for i, size in enumerate(shape) if i != axis)
    if min(height, width) < least:
        raise InputError(
            f"model '{model}' needs images of at least {least} x {least} pixels, but "
            f"'{data.source}' has {height} x {width}"
        )
    return Images(channels, height, width, axis)


def normalisation(
    norm: Literal["batch", "group"], groups: int, channels: int
) -> Callable[[int], torch.nn.Module]:
    """Return what normalises a number of channels, by batch or by groups.

    Raises
    ------
    InputError
        If ``groups`` does not divide ``channels``, the least number of a network.
    """
    if channels % groups:
        raise InputError(f"model.groups is {groups}; it must divide {channels}")
    return torch.nn.BatchNorm2d if norm == "batch" else partial(torch.nn.GroupNorm, groups)


def crop_and_flip(x: Tensor, padding: int = 4) -> Tensor:
    """Return images (B, channels, height, width), each cut anew from itself with a margin of zeros,
    and mirrored with probability 1/2 (He et al. 2016, section 4.2).
    """
    count, _, height, width = x.shape
    down, right = (torch.randint(2 * padding + 1, (count,), device=x.device) for _ in range(2))
    mirrored = torch.rand(count, 1, device=x.device) < 0.5
    rows = down[:, None] + torch.arange(height, device=x.device)
    columns = torch.arange(width, device=x.device).expand(count, -1)
    columns = right[:, None] + torch.where(mirrored, width - 1 - columns, columns)
    padded = pad(x, (padding,) * 4)
    images = torch.arange(count, device=x.device)[:, None, None]
    return padded.movedim(1, -1)[images, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


class ShippedNetwork(torch.nn.Module):
    """Base class of the networks that mpifed ships.

    A network with ``augment`` trains on images that are cropped and mirrored at random.
    """

    last_layer = "output"
    # Inputs are whole numbers from 0 on, below it; None where they are no tokens.
    n_tokens: int | None = None
    # Whether kernels have the variance 2 / fan out of He et al. 2015 ("Delving deep into
    # rectifiers"), eq. 14, and not torch's.
    by_fan_out = False
    weights: str | None = None
    new_classifier = False
    images: Images
    augment = False

    def pixels(self, x: Tensor) -> Tensor:
        """Return a batch (B, *input_shape) as images, augmented in training where asked."""
        images = self.images(x)
        return crop_and_flip(images) if self.augment and self.training else images

    def drawn(
        self, weights: str | None, new_classifier: bool, augment: bool = False
    ) -> ShippedNetwork:
        """Return the network itself, its parameters drawn, or loaded from the file ``weights``."""
        if new_classifier and weights is None:
            raise InputError(
                "model.new_classifier is true, but there are no model.weights; allowed here: false"
            )
        self.weights, self.new_classifier, self.augment = weights, new_classifier, augment
        self.reset_parameters()
        return self

    def draw(self) -> None:
        """Draw all parameters from torch's global generator."""
        for part in self.modules():
            if self.by_fan_out and isinstance(part, torch.nn.Conv2d):
                torch.nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
            elif part is not self and callable(reset := getattr(part, "reset_parameters", None)):
                reset()

    def reset_parameters(self) -> None:
        """Draw all parameters, then load the file's where there is one."""
        self.draw()
        if self.weights is not None:
            load_weights(self, self.weights, self.last_layer, self.new_classifier)
