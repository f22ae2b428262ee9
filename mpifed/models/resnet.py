"""Residual networks of basic blocks (He et al. 2016, "Deep residual learning")."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Literal

from annotated_types import Ge
from torch import Tensor, relu_
from torch.nn import BatchNorm2d, Conv2d, GroupNorm, Identity, Linear, MaxPool2d, Module, Sequential

from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.models.images import Images, Network, images_of

Norm = Literal["batch", "group"]
# Channels of the four stages.
WIDTHS = (64, 128, 256, 512)

# Makes the normalisation of a number of channels.
Normalisation = Callable[[int], Module]


class BasicBlock(Module):
    """Two 3 x 3 convolutions, to whose result the input is added."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Normalisation) -> None:
        super().__init__()
        self.conv1 = Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = norm(outputs)
        self.conv2 = Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = norm(outputs)
        self.downsample: Module = Identity()
        if stride > 1 or inputs != outputs:
            self.downsample = Sequential(
                Conv2d(inputs, outputs, 1, stride, bias=False), norm(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, outputs, ...) for x (B, inputs, height, width)."""
        h = self.bn2(self.conv2(relu_(self.bn1(self.conv1(x)))))
        return relu_(h + self.downsample(x))


class ResNet(Network):
    """Four stages of basic blocks."""

    last_layer = "fc"
    by_fan_out = True

    def __init__(
        self,
        images: Images,
        n_outputs: int,
        blocks: tuple[int, ...],
        norm: Normalisation = BatchNorm2d,
        cifar_stem: bool = False,
    ) -> None:
        super().__init__()
        self.images = images
        kernel, stride = (3, 1) if cifar_stem else (7, 2)
        self.conv1 = Conv2d(images.channels, WIDTHS[0], kernel, stride, kernel // 2, bias=False)
        self.bn1 = norm(WIDTHS[0])
        self.maxpool = Identity() if cifar_stem else MaxPool2d(3, 2, 1)
        channels = WIDTHS[0]
        for stage, (width, count) in enumerate(zip(WIDTHS, blocks, strict=True)):
            first = BasicBlock(channels, width, 1 if stage == 0 else 2, norm)
            rest = [BasicBlock(width, width, 1, norm) for _ in range(count - 1)]
            self.add_module(f"layer{stage + 1}", Sequential(first, *rest))
            channels = width
        self.fc = Linear(channels, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, n_outputs) for a batch (B, *input_shape)."""
        h = self.maxpool(relu_(self.bn1(self.conv1(self.images(x)))))
        for stage in range(len(WIDTHS)):
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
) -> Network:
    if WIDTHS[0] % groups:
        raise InputError(f"model.groups is {groups}; it must divide {WIDTHS[0]}")
    make: Normalisation = BatchNorm2d if norm == "batch" else partial(GroupNorm, groups)
    images = images_of(data, name)
    made = ResNet(images, data.n_outputs, blocks, make, cifar_stem)
    return made.drawn(weights, new_classifier)


def resnet18(
    data: Description,
    *,
    cifar_stem: bool = False,
    norm: Norm = "batch",
    groups: Annotated[int, Ge(1)] = 2,
    weights: str | None = None,
    new_classifier: bool = False,
) -> Network:
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
) -> Network:
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
