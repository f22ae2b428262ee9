"""VGG networks for small images (Simonyan and Zisserman 2015)."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge
from torch import Tensor
from torch.nn import Conv2d, Linear, MaxPool2d, Module, ReLU, Sequential

from mpifed.data.base import Description
from mpifed.models.images import Images, ShippedNetwork, images_of, normalisation

# Channels of the convolutions; 0 is a maximum over 2 x 2.
VGG11 = (64, 0, 128, 0, 256, 256, 0, 512, 512, 0, 512, 512, 0)

Norm = Literal["none", "batch", "group"]


class Vgg(ShippedNetwork):
    """3 x 3 convolutions and maxima, then one linear layer, as is usual for CIFAR."""

    last_layer = "classifier"

    def __init__(self, images: Images, n_outputs: int, norm: Norm, groups: int) -> None:
        super().__init__()
        self.images = images
        make = normalisation("group" if norm == "group" else "batch", groups, VGG11[0])
        layers: list[Module] = []
        channels, height, width = images.channels, images.height, images.width
        for outputs in VGG11:
            if not outputs:
                layers.append(MaxPool2d(2))
                height, width = height // 2, width // 2
                continue
            layers.append(Conv2d(channels, outputs, 3, padding=1))
            if norm != "none":
                layers.append(make(outputs))
            layers.append(ReLU(inplace=True))
            channels = outputs
        self.features = Sequential(*layers)
        self.classifier = Linear(channels * height * width, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, n_outputs) for a batch (B, *input_shape)."""
        return self.classifier(self.features(self.pixels(x)).flatten(1))


def vgg11(
    data: Description,
    *,
    norm: Norm = "none",
    groups: Annotated[int, Ge(1)] = 2,
    augment: bool = False,
    weights: str | None = None,
    new_classifier: bool = False,
) -> ShippedNetwork:
    """VGG-11 for images of at least 32 x 32, with one linear layer (configuration A).

    Parameters
    ----------
    data : Description
        What the samples are.
    norm : {'none', 'batch', 'group'}
        Behind each convolution: nothing, or normalisation by batch or by groups of channels.
    groups : int
        Groups of channels in each normalisation by groups; it divides 64.
    augment : bool
        Train on images that are cropped with a margin of 4 pixels, and mirrored, at random.
    weights : str, optional
        File with the first parameters, a state dict of torch.save. None draws them.
    new_classifier : bool
        Draw the last layer although weights are given.
    """
    network = Vgg(images_of(data, "vgg11", 32), data.n_outputs, norm, groups)
    return network.drawn(weights, new_classifier, augment)
