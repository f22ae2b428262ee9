"""Residual networks of basic blocks (He et al. 2016, "Deep residual learning")."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Literal

from annotated_types import Ge
from torch import Tensor, relu_
from torch.nn import BatchNorm2d, Conv2d, Identity, Linear, MaxPool2d, Module, Sequential
from torch.nn.functional import pad

from mpifed.data.base import Description
from mpifed.models.images import Images, ShippedNetwork, images_of, normalisation

Norm = Literal["batch", "group"]
# Channels of the stages: of the networks for large images, and of those for CIFAR.
WIDTHS = (64, 128, 256, 512)
CIFAR_WIDTHS = (16, 32, 64)

# Makes the normalisation of a number of channels.
Normalisation = Callable[[int], Module]


class Padded(Module):
    """Every ``stride``-th pixel, and ``extra`` channels of zeros (He et al. 2016, option A)."""

    def __init__(self, stride: int, extra: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, extra

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, inputs + extra, ...) for x (B, inputs, height, width)."""
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.extra))


class BasicBlock(Module):
    """Two 3 x 3 convolutions, to whose result the input is added."""

    def __init__(
        self, inputs: int, outputs: int, stride: int, norm: Normalisation, padded: bool = False
    ) -> None:
        super().__init__()
        self.conv1 = Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = norm(outputs)
        self.downsample: Module = Identity()
        if stride > 1 or inputs != outputs:
            self.downsample = (
                Padded(stride, outputs - inputs)
                if padded
                else Sequential(Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs))
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, outputs, ...) for x (B, inputs, height, width)."""
        h = self.bn2(self.conv2(relu_(self.bn1(self.conv1(x)))))
        return relu_(h + self.downsample(x))


class ResNet(ShippedNetwork):
    """Stages of basic blocks."""

    last_layer = "fc"
    by_fan_out = True

    def __init__(
        self,
        images: Images,
        n_outputs: int,
        blocks: tuple[int, ...],
        norm: Normalisation = BatchNorm2d,
        cifar_stem: bool = False,
        widths: tuple[int, ...] = WIDTHS,
    ) -> None:
        super().__init__()
        self.images = images
        kernel, stride = (3, 1) if cifar_stem else (7, 2)
        self.conv1 = Conv2d(images.channels, widths[0], kernel, stride, kernel // 2, bias=False)
        self.bn1 = norm(widths[0])
        self.maxpool = Identity() if cifar_stem else MaxPool2d(3, 2, 1)
        channels = widths[0]
        for stage, (width, count) in enumerate(zip(widths, blocks, strict=True)):
            padded = widths == CIFAR_WIDTHS
            first = BasicBlock(channels, width, 1 if stage == 0 else 2, norm, padded)
            others = [BasicBlock(width, width, 1, norm) for _ in range(count - 1)]
            self.add_module(f"layer{stage + 1}", Sequential(first, *others))
            channels = width
        self.stages = len(widths)
        self.fc = Linear(channels, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, n_outputs) for a batch (B, *input_shape)."""
        h = self.maxpool(relu_(self.bn1(self.conv1(self.pixels(x)))))
        for stage in range(self.stages):
            h = self.get_submodule(f"layer{stage + 1}")(h)
        return self.fc(h.mean((2, 3)))


def _build(
    name: str,
    blocks: tuple[int, ...],
    data: Description,
    cifar_stem: bool,
    norm: Norm,
    groups: int,
    weights: str | None,
    new_classifier: bool,
    augment: bool = False,
    widths: tuple[int, ...] = WIDTHS,
) -> ShippedNetwork:
    make = normalisation(norm, groups, widths[0])
    images = images_of(data, name)
    network = ResNet(images, data.n_outputs, blocks, make, cifar_stem, widths)
    return network.drawn(weights, new_classifier, augment)


def resnet18(
    data: Description,
    *,
    cifar_stem: bool = False,
    norm: Norm = "batch",
    groups: Annotated[int, Ge(1)] = 2,
    weights: str | None = None,
    new_classifier: bool = False,
) -> ShippedNetwork:
    """ResNet-18, with torchvision's names of layers.

    Parameters
    ----------
    data : Description
        What the samples are.
    cifar_stem : bool
        Begin with 3 x 3 at stride 1, without a maximum, for images of about 32 x 32.
    norm : {'batch', 'group'}
        By batch, or by groups of channels, which needs no running statistics (Hsieh et al. 2020).
    groups : int
        Groups of channels in each normalisation by groups; it divides 64.
    weights : str, optional
        File with the first parameters, such as torchvision's state dict. None draws them.
    new_classifier : bool
        Draw the last layer although weights are given.
    """
    return _build("resnet18", (2, 2, 2, 2), data, cifar_stem, norm, groups, weights, new_classifier)


def resnet34(
    data: Description,
    *,
    cifar_stem: bool = False,
    norm: Norm = "batch",
    groups: Annotated[int, Ge(1)] = 2,
    weights: str | None = None,
    new_classifier: bool = False,
) -> ShippedNetwork:
    """ResNet-34, with torchvision's names of layers.

    Parameters
    ----------
    data : Description
        What the samples are.
    cifar_stem : bool
        Begin with 3 x 3 at stride 1, without a maximum, for images of about 32 x 32.
    norm : {'batch', 'group'}
        By batch, or by groups of channels, which needs no running statistics (Hsieh et al. 2020).
    groups : int
        Groups of channels in each normalisation by groups; it divides 64.
    weights : str, optional
        File with the first parameters, such as torchvision's state dict. None draws them.
    new_classifier : bool
        Draw the last layer although weights are given.
    """
    return _build("resnet34", (3, 4, 6, 3), data, cifar_stem, norm, groups, weights, new_classifier)


def resnet20(
    data: Description,
    *,
    norm: Norm = "batch",
    groups: Annotated[int, Ge(1)] = 2,
    augment: bool = False,
    weights: str | None = None,
    new_classifier: bool = False,
) -> ShippedNetwork:
    """ResNet-20 for CIFAR (He et al. 2016, section 4.2), with shortcuts without parameters.

    Parameters
    ----------
    data : Description
        What the samples are.
    norm : {'batch', 'group'}
        By batch, or by groups of channels, which needs no running statistics (Hsieh et al. 2020).
    groups : int
        Groups of channels in each normalisation by groups; it divides 16.
    augment : bool
        Train on images that are cropped with a margin of 4 pixels, and mirrored, at random.
    weights : str, optional
        File with the first parameters, a state dict of torch.save. None draws them.
    new_classifier : bool
        Draw the last layer although weights are given.
    """
    blocks, others = (3, 3, 3), (weights, new_classifier, augment, CIFAR_WIDTHS)
    return _build("resnet20", blocks, data, True, norm, groups, *others)
