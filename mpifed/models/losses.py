"""What a model's outputs cost, and whether they are right, for each task.

* classification: binary problems have one output, the logit of label 1; problems with K > 2 classes
  K logits; ``y`` is int64 (..., B);
* multi_label: q independent sigmoids, the loss is the mean of their q cross-entropies;
* regression: the mean of the q squared errors, or half their sum; ``y`` is floating (..., B, q).

The elementwise functions used here were chosen because a CPU computes them alike wherever in a
tensor an element stands (``softplus`` and a softmax over any but the last axis are not so), which
is what lets a client's result not depend on its neighbours in a block;
``tests/mpifed/test_blocks.py`` checks it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

LossName = Literal["auto", "squared", "half_squared"]
TOP = 5
"""Guesses that recall at 5 counts (Gasanov et al. 2021, section 5.3)."""


@dataclass(frozen=True)
class Loss:
    """A loss and the measure that goes with it.

    ``samples(outputs, y)`` gives the loss per sample, (..., B, outputs) to (..., B), and
    ``slopes(outputs, y)`` its derivative, shape of ``outputs``.
    ``hits(outputs, y, mixture, losses)`` says how much of ``measure`` each sample earns, and how
    much it could: two (B,), from outputs (M, B, outputs), mixture weights (M,) or None where M is
    1, and the losses of the mixture (B,).
    """

    name: str
    measure: Literal["accuracy", "recall_at_5"] | None
    samples: Callable[[Tensor, Tensor], Tensor]
    slopes: Callable[[Tensor, Tensor], Tensor]
    hits: Callable[[Tensor, Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]


def loss_for(task: str, name: LossName = "auto") -> Loss:
    """The loss of a task; ``name`` chooses between those of a regression."""
    if task == "multi_label":
        return MULTI_LABEL
    if task == "regression":
        return HALF_SQUARED if name == "half_squared" else SQUARED
    return CROSS_ENTROPY


def score(
    loss: Loss, outputs: Tensor, y: Tensor, mixture: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Losses of the mixture of predictions (Marfoq et al. 2021, eq. 5), hits and possible hits.

    ``outputs`` is (M, B, outputs), ``y`` (B, ...), ``mixture`` (M,) or None where M is 1. The loss
    is -log sum_m pi_m exp(-loss_m); all three results are (B,).
    """
    losses = loss.samples(outputs, y.expand(len(outputs), *y.shape))
    if mixture is None:
        mixed = losses[0]
    else:
        mixed = -torch.logsumexp((torch.log(mixture)[:, None] - losses).T.contiguous(), -1)
    return mixed, *loss.hits(outputs, y, mixture, mixed)


def sigmoid(z: Tensor) -> Tensor:
    """1 / (1 + exp(-z)); overflow of exp gives the right limit, 0."""
    return 1 / (1 + torch.exp(-z))


def logistic(z: Tensor, y: Tensor) -> Tensor:
    """-log of the probability that a logit ``z`` gives to ``y`` in {0, 1}; elementwise."""
    return z.clamp(min=0) - z * y + torch.log1p(torch.exp(-z.abs()))


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """-log p(y | x) per sample: (..., B, outputs) and (..., B) to (..., B)."""
    if outputs.shape[-1] == 1:
        return logistic(outputs[..., 0], y)
    return -torch.log_softmax(outputs, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def cross_entropy_slopes(outputs: Tensor, y: Tensor) -> Tensor:
    """d cross_entropy / d outputs."""
    if outputs.shape[-1] == 1:
        return sigmoid(outputs) - y.unsqueeze(-1)
    slopes = torch.softmax(outputs, -1)
    return slopes.scatter_add(-1, y.unsqueeze(-1), torch.full_like(slopes[..., :1], -1))


def right_labels(
    outputs: Tensor, y: Tensor, mixture: Tensor | None, losses: Tensor
) -> tuple[Tensor, Tensor]:
    """Whether the most probable label is ``y``."""
    binary = outputs.shape[-1] == 1
    if mixture is None:
        right = (outputs[0, :, 0] > 0 if binary else outputs[0].argmax(-1)) == y
    elif binary:
        p_true = torch.exp(-losses)
        right = torch.where(y == 1, p_true > 0.5, p_true >= 0.5)
    else:
        right = (torch.softmax(outputs, -1) * mixture[:, None, None]).sum(0).argmax(-1) == y
    return right, torch.ones_like(right)


def tags_recalled(
    outputs: Tensor, y: Tensor, mixture: Tensor | None, losses: Tensor
) -> tuple[Tensor, Tensor]:
    """How many of a sample's tags are among the ``TOP`` likeliest, and how many it has."""
    scores = outputs[0]
    if mixture is not None:
        scores = (sigmoid(outputs) * mixture[:, None, None]).sum(0)
    best = scores.topk(min(TOP, scores.shape[-1]), -1).indices
    return y.gather(-1, best).sum(-1), y.sum(-1)


def nothing_to_hit(
    outputs: Tensor, y: Tensor, mixture: Tensor | None, losses: Tensor
) -> tuple[Tensor, Tensor]:
    """A regression is never simply right."""
    nothing = outputs.new_zeros(len(y))
    return nothing, nothing


CROSS_ENTROPY = Loss("cross_entropy", "accuracy", cross_entropy, cross_entropy_slopes, right_labels)
MULTI_LABEL = Loss(
    "multi_label",
    "recall_at_5",
    lambda outputs, y: logistic(outputs, y).mean(-1),
    lambda outputs, y: (sigmoid(outputs) - y) / y.shape[-1],
    tags_recalled,
)
SQUARED = Loss(
    "squared",
    None,
    lambda outputs, y: (outputs - y).square().mean(-1),
    lambda outputs, y: (outputs - y) * (2 / y.shape[-1]),
    nothing_to_hit,
)
HALF_SQUARED = Loss(
    "half_squared",
    None,
    lambda outputs, y: (outputs - y).square().sum(-1) / 2,
    lambda outputs, y: outputs - y,
    nothing_to_hit,
)
