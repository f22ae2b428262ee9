"""MobileNet-v2 (Sandler et al. 2018, "Inverted residuals and linear bottlenecks")."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Gt, Le
from torch import Tensor
from torch.nn import BatchNorm2d, Conv2d, Linear, ReLU6, Sequential

from mpifed.data.base import Description
from mpifed.models.images import Images, ShippedNetwork, images_of

# Expansion, channels, blocks and first stride of each stage (Sandler et al. 2018, table 2).
STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)

# Channels of the first and the last convolution.
FIRST, LAST = 32, 1280

# Outputs of the classifier that ``extra_linear`` keeps.
IMAGENET_CLASSES = 1000


def whole_channels(channels: float) -> int:
    """Return the multiple of 8 nearest to ``channels``, not less than nine tenths of it."""
    nearest = max(8, int(channels + 4) // 8 * 8)
    return nearest if nearest >= 0.9 * channels else nearest + 8


def convolution(
    inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1
) -> Sequential:
    """Return a padded convolution, batch normalisation, and min(max(x, 0), 6)."""
    padding = kernel // 2
    return Sequential(
        Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False),
        BatchNorm2d(outputs),
        ReLU6(inplace=True),
    )


class InvertedResidual(torch.nn.Module):
    """Expansion by 1 x 1, a 3 x 3 convolution of each channel, and a linear 1 x 1 projection."""

    def __init__(self, inputs: int, outputs: int, stride: int, expansion: int) -> None:
        super().__init__()
        hidden = inputs * expansion
        self.adds_input = stride == 1 and inputs == outputs
        self.conv = Sequential(
            *([convolution(inputs, hidden, 1)] if expansion > 1 else []),
            convolution(hidden, hidden, 3, stride, groups=hidden),
            Conv2d(hidden, outputs, 1, bias=False),
            BatchNorm2d(outputs),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, outputs, ...) for x (B, inputs, height, width)."""
        return x + self.conv(x) if self.adds_input else self.conv(x)


class MobileNetV2(ShippedNetwork):
    """MobileNet-v2."""

    by_fan_out = True

    def __init__(
        self,
        images: Images,
        n_outputs: int,
        width: float = 1.0,
        cifar_stem: bool = False,
        extra_linear: bool = False,
    ) -> None:
        super().__init__()
        self.images = images
        channels = whole_channels(FIRST * width)
        layers: list[torch.nn.Module] = [
            convolution(images.channels, channels, 3, 1 if cifar_stem else 2)
        ]
        for stage, (expansion, base, blocks, first_stride) in enumerate(STAGES):
            outputs = whole_channels(base * width)
            for block in range(blocks):
                stride = first_stride if block == 0 and not (cifar_stem and stage == 1) else 1
                layers.append(InvertedResidual(channels, outputs, stride, expansion))
                channels = outputs
        last = whole_channels(LAST * max(1.0, width))
        self.features = Sequential(*layers, convolution(channels, last, 1))
        head = [Linear(last, IMAGENET_CLASSES)] if extra_linear else []
        head.append(Linear(head[-1].out_features if head else last, n_outputs))
        self.classifier = Sequential(torch.nn.Dropout(0.2), *head)
        self.last_layer = f"classifier.{len(head)}"

    def draw(self) -> None:
        """Draw kernels by their fan out, linear layers from N(0, 0.01^2) with biases 0."""
        super().draw()
        for layer in self.classifier:
            if isinstance(layer, Linear):
                torch.nn.init.normal_(layer.weight, 0, 0.01)
                torch.nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, n_outputs) for a batch (B, *input_shape)."""
        return self.classifier(self.features(self.images(x)).mean((2, 3)))


def mobilenet_v2(
    data: Description,
    *,
    width: Annotated[float, Gt(0), Le(8)] = 1.0,
    cifar_stem: bool = False,
    extra_linear: bool = False,
    weights: str | None = None,
    new_classifier: bool = False,
) -> ShippedNetwork:
    """MobileNet-v2, with torchvision's names of layers.

    Parameters
    ----------
    data : Description
        What the samples are.
    width : float
        Factor of all numbers of channels, which are then rounded to multiples of 8.
    cifar_stem : bool
        Stride 1 in the first convolution and the second stage, for images of about 32 x 32.
    extra_linear : bool
        Keep the classifier of 1000 outputs and add a linear layer (Marfoq et al. 2021, I.1.1).
    weights : str, optional
        File with the first parameters, such as torchvision's state dict. None draws them.
    new_classifier : bool
        Draw the last layer although weights are given.
    """
    images = images_of(data, "mobilenet_v2")
    network = MobileNetV2(images, data.n_outputs, width, cifar_stem, extra_linear)
    return network.drawn(weights, new_classifier)
