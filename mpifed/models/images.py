"""Samples as images: which axis has the channels, and batches in the layout of convolutions."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from mpifed.data.base import Description
from mpifed.data.pictures import channel_axis
from mpifed.errors import InputError
from mpifed.models.outputs import refuse_sequences


@dataclass(frozen=True)
class Images:
    """The images of a data set.

    Attributes
    ----------
    channels, height, width : int
        Size of an image.
    axis : int or None
        Axis of a sample that has the channels: 0, 2, or None where samples are (height, width).

    Examples
    --------
    >>> import torch
    >>> Images(3, 32, 32, axis=2)(torch.zeros(5, 32, 32, 3)).shape
    torch.Size([5, 3, 32, 32])
    """

    channels: int
    height: int
    width: int
    axis: int | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return a batch (B, *input_shape) as (B, channels, height, width)."""
        if self.axis is None:
            return x.unsqueeze(1)
        return x.movedim(3, 1) if self.axis == 2 else x


def images_of(
    data: Description,
    model: str,
    least: int = 1,
    advice: str = "use mlp, or enlarge the images",
) -> Images:
    """Find the channels of the samples.

    Two axes are (height, width). Of three axes the first or the last has the channels, whichever
    is shorter; the first where both are alike.

    Parameters
    ----------
    data : Description
        What the samples are.
    model : str
        Name of the model, for messages.
    least : int
        Smallest height and width that the model takes.
    advice : str
        What to do where images are smaller.

    Returns
    -------
    Images

    Raises
    ------
    InputError
        Where samples are not images, or are too small, or have a target at each position.

    Examples
    --------
    >>> import numpy as np
    >>> n = np.array([4])
    >>> images_of(Description("colours", (32, 32, 3), 10, n, n, n), "cnn")
    Images(channels=3, height=32, width=32, axis=2)
    """
    shape = data.input_shape
    refuse_sequences(data, model)
    if len(shape) not in (2, 3):
        raise InputError(
            f"model '{model}' needs images, (height, width), (channels, height, width) or (height, "
            f"width, channels), but '{data.source}' has samples of shape {shape}; reshape them to "
            "one of these, or use mlp or linear"
        )
    axis = channel_axis(shape)
    channels = 1 if axis is None else shape[axis]
    height, width = (size for place, size in enumerate(shape) if place != axis)
    found = Images(channels, height, width, axis)
    if min(found.height, found.width) < least:
        raise InputError(
            f"model '{model}' needs images of at least {least} x {least} pixels, but "
            f"'{data.source}' has {found.height} x {found.width}; {advice}"
        )
    return found
