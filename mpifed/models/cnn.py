"""Small convolutional networks: those of FedEM's experiments on EMNIST and FEMNIST, and LeNet."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, relu_
from torch.nn.functional import max_pool2d

from mpifed.data.base import Description
from mpifed.models.images import Images, ShippedNetwork, images_of

# Channels of the two convolutions.
FILTERS = (32, 64)


class ReddiCnn(ShippedNetwork):
    """Two 3 x 3 convolutions, maximum over 2 x 2, dropout, and 128 hidden units: the network of
    Reddi et al. 2021 ("Adaptive federated optimization") for EMNIST, which Marfoq et al. 2021 name
    in appendix I.1.2.
    """

    def __init__(self, images: Images, n_outputs: int) -> None:
        super().__init__()
        self.images = images
        height, width = (images.height - 4) // 2, (images.width - 4) // 2
        self.conv1 = torch.nn.Conv2d(images.channels, FILTERS[0], 3)
        self.conv2 = torch.nn.Conv2d(*FILTERS, 3)
        self.dropout1 = torch.nn.Dropout(0.25)
        self.hidden = torch.nn.Linear(FILTERS[1] * height * width, 128)
        self.dropout2 = torch.nn.Dropout(0.5)
        self.output = torch.nn.Linear(128, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, n_outputs) for a batch (B, *input_shape)."""
        h = relu_(self.conv1(self.images(x)))
        # The maximum comes first, since it leaves a quarter of the numbers; the result is the same.
        h = self.dropout1(relu_(max_pool2d(self.conv2(h), 2)))
        return self.output(self.dropout2(relu_(self.hidden(h.flatten(1)))))


class PublishedCnn(ShippedNetwork):
    """Two 5 x 5 convolutions, each with a maximum over 2 x 2, and 2048 hidden units: the network
    in the published code of Marfoq et al. 2021.
    """

    def __init__(self, images: Images, n_outputs: int) -> None:
        super().__init__()
        self.images = images
        height, width = (((side - 4) // 2 - 4) // 2 for side in (images.height, images.width))
        self.conv1 = torch.nn.Conv2d(images.channels, FILTERS[0], 5)
        self.conv2 = torch.nn.Conv2d(*FILTERS, 5)
        self.hidden = torch.nn.Linear(FILTERS[1] * height * width, 2048)
        self.output = torch.nn.Linear(2048, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, n_outputs) for a batch (B, *input_shape)."""
        h = relu_(max_pool2d(self.conv1(self.images(x)), 2))
        h = relu_(max_pool2d(self.conv2(h), 2))
        return self.output(relu_(self.hidden(h.flatten(1))))


class LeNet(ShippedNetwork):
    """LeNet-5 (LeCun et al. 1998) with ReLU, maxima over 2 x 2, and each of them normalised by
    groups of channels, as in the published code of Takezawa et al. 2023.
    """

    def __init__(self, images: Images, n_outputs: int) -> None:
        super().__init__()
        self.images = images
        height, width = (((side - 4) // 2 - 4) // 2 for side in (images.height, images.width))
        self.conv1 = torch.nn.Conv2d(images.channels, 6, 5)
        self.gn1 = torch.nn.GroupNorm(2, 6)
        self.conv2 = torch.nn.Conv2d(6, 16, 5)
        self.gn2 = torch.nn.GroupNorm(4, 16)
        self.fc1 = torch.nn.Linear(16 * height * width, 120)
        self.fc2 = torch.nn.Linear(120, 84)
        self.output = torch.nn.Linear(84, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs (B, n_outputs) for a batch (B, *input_shape)."""
        h = self.gn1(relu_(max_pool2d(self.conv1(self.images(x)), 2)))
        h = self.gn2(relu_(max_pool2d(self.conv2(h), 2)))
        return self.output(relu_(self.fc2(relu_(self.fc1(h.flatten(1))))))


def cnn(
    data: Description,
    *,
    variant: Literal["reddi", "published", "lenet"] = "reddi",
    weights: str | None = None,
    new_classifier: bool = False,
) -> ShippedNetwork:
    """Convolutional network for small images, as in FedEM's experiments on EMNIST and FEMNIST.

    Parameters
    ----------
    data : Description
        What the samples are.
    variant : {'reddi', 'published', 'lenet'}
        3 x 3 kernels, dropout, 128 hidden units (Reddi et al. 2021); 5 x 5, none, 2048 units; or
        LeNet-5 with group normalisation (Takezawa et al. 2023).
    weights : str, optional
        File with the first parameters, a state dict of torch.save. None draws them.
    new_classifier : bool
        Draw the last layer although weights are given.
    """
    network: ShippedNetwork
    if variant == "reddi":
        network = ReddiCnn(images_of(data, "cnn", 6), data.n_outputs)
    else:
        images = images_of(data, "cnn", 16)
        network = (LeNet if variant == "lenet" else PublishedCnn)(images, data.n_outputs)
    return network.drawn(weights, new_classifier)
