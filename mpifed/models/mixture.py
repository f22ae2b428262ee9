"""Mixtures of models, as one torch module."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from mpifed.models.losses import Loss


class Mixture(nn.Module):
    """The predictor sum_m pi_m h_m (Marfoq et al. 2021, eq. 5) of M models.

    Its outputs are log sum_m pi_m softmax(h_m) for classes at every position, the logit of
    sum_m pi_m sigmoid(h_m) for two classes and for tags, and sum_m pi_m h_m for regressions.

    Parameters
    ----------
    components : sequence of torch.nn.Module
        The M models, whose outputs have the same shape.
    weights : Tensor
        pi, floating-point (M,).
    loss : Loss
        The loss of the task; it says what outputs mean.

    Examples
    --------
    >>> from mpifed.models.losses import CROSS_ENTROPY
    >>> fair = Mixture([nn.Identity(), nn.Identity()], torch.tensor([0.5, 0.5]), CROSS_ENTROPY)
    >>> fair(torch.zeros(1, 4)).exp()
    tensor([[0.2500, 0.2500, 0.2500, 0.2500]])
    """

    weights: Tensor

    def __init__(self, components: Sequence[nn.Module], weights: Tensor, loss: Loss) -> None:
        super().__init__()
        self.components = nn.ModuleList(components)
        self.register_buffer("weights", weights.detach().clone())
        self.mixed = loss.mixed

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a batch: (B, *input_shape) to (B, *output_shape)."""
        outputs = torch.stack([component(x) for component in self.components])
        return self.mixed(outputs, self.weights)


class GatedMixture(nn.Module):
    """The predictor sum_m pi_m(x) h_m(x) of M models; its outputs are those of ``Mixture``.

    Parameters
    ----------
    components : sequence of torch.nn.Module
        The M models, whose outputs have the same shape.
    gate : callable
        pi, (B, *input_shape) to (M, B).
    loss : Loss
        The loss of the task; it says what outputs mean.
    """

    def __init__(
        self, components: Sequence[nn.Module], gate: Callable[[Tensor], Tensor], loss: Loss
    ) -> None:
        super().__init__()
        self.components = nn.ModuleList(components)
        self.gate, self.mixed = gate, loss.mixed

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs of a batch: (B, *input_shape) to (B, *output_shape)."""
        outputs = torch.stack([component(x) for component in self.components])
        return self.mixed(outputs, self.gate(x))
