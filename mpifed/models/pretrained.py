"""Networks whose first parameters are drawn, or read from a file."""

from __future__ import annotations

import torch

from mpifed.errors import InputError
from mpifed.reading.weights import load_weights


class Network(torch.nn.Module):
    """Base class of the networks here.

    Parameters
    ----------
    weights : str, optional
        File with the first parameters, a state dict; see ``load_weights``.
    new_classifier : bool
        Draw the last layer although ``weights`` are given.

    Attributes
    ----------
    last_layer : str
        Name of the last layer.

    Raises
    ------
    InputError
        Where ``new_classifier`` is true without ``weights``.
    """

    last_layer = "output"

    def __init__(self, weights: str | None = None, new_classifier: bool = False) -> None:
        super().__init__()
        if new_classifier and weights is None:
            raise InputError(
                "model.new_classifier is true, but there are no model.weights; allowed here: false"
            )
        self.weights, self.new_classifier = weights, new_classifier

    def draw(self) -> None:
        """Draw all parameters from torch's global generator."""
        for part in self.modules():
            reset = getattr(part, "reset_parameters", None)
            if part is not self and callable(reset):
                reset()

    def reset_parameters(self) -> None:
        """Draw all parameters, then load the file's where there is one."""
        self.draw()
        if self.weights is not None:
            load_weights(self, self.weights, self.last_layer, self.new_classifier)


def draw_by_fan_out(network: torch.nn.Module) -> None:
    """Draw kernels of convolutions from N(0, 2 / fan out), all else by its own rule.

    This is the variance of He et al. 2015 ("Delving deep into rectifiers"), eq. 14. The fan out is
    the number of pixels of a kernel times all output channels, also where they are in groups, as in
    torchvision.

    Parameters
    ----------
    network : torch.nn.Module
        Its parts are drawn from torch's global generator, in their order.
    """
    for part in network.modules():
        if isinstance(part, torch.nn.Conv2d):
            torch.nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")
        elif part is not network and callable(reset := getattr(part, "reset_parameters", None)):
            reset()
