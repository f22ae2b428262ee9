"""What a loss is, and the formulas of losses, hits and mixtures of outputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

# Samples to whose multiples losses are padded, so that no vector loop ends in a scalar tail.
LANES = 32

# Models of a mixture whose likelihoods are added one after the other.
FEW = 4

# Number of guesses in recall at 5 (Gasanov et al. 2021, section 5.3).
TOP = 5


def sigmoid(z: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-z)); overflow of exp gives the right limit, 0."""
    return 1 / (1 + torch.exp(-z))


def logistic(z: Tensor, y: Tensor) -> Tensor:
    """Return -log of the probability that a logit ``z`` gives to ``y`` in {0, 1}; elementwise."""
    return z.clamp(min=0) - z * y + torch.log1p(torch.exp(-z.abs()))


def cross_entropy(outputs: Tensor, y: Tensor) -> Tensor:
    """Return -log p(y | x) of each sample: (..., B, outputs) and (..., B) to (..., B)."""
    if outputs.shape[-1] == 1:
        return logistic(outputs[..., 0], y)
    return -torch.log_softmax(outputs, -1).gather(-1, y.unsqueeze(-1)).squeeze(-1)


def cross_entropy_slopes(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the derivative of ``cross_entropy`` in the outputs, shape of ``outputs``."""
    if outputs.shape[-1] == 1:
        return sigmoid(outputs) - y.unsqueeze(-1)
    slopes = torch.softmax(outputs, -1)
    return slopes.scatter_add(-1, y.unsqueeze(-1), torch.full_like(slopes[..., :1], -1))


def in_lanes(rows: Tensor, axis: int) -> Tensor:
    """Return ``rows`` with zeros up to the next multiple of ``LANES`` along an axis."""
    missing = -rows.shape[axis] % LANES
    if not missing:
        return rows
    return torch.constant_pad_nd(rows, [0, 0] * (rows.dim() - 1 - axis) + [0, missing])


def aligned(mixture: Tensor, outputs: Tensor) -> Tensor:
    """Return weights (M,) or (M, B) with as many axes as ``outputs``, (M, B, ...)."""
    return mixture.view(*mixture.shape, *[1] * (outputs.dim() - mixture.dim()))


def mixed_output(outputs: Tensor, mixture: Tensor) -> Tensor:
    """Return sum_m pi_m h_m, (B, outputs), added component by component, whatever B is."""
    return reduce(torch.add, (outputs * aligned(mixture, outputs)).unbind(0))


def mixed_logits(outputs: Tensor, mixture: Tensor) -> Tensor:
    """Return the logit of sum_m pi_m sigmoid(outputs_m), elementwise."""
    weights = torch.log(aligned(mixture, outputs))
    # Of both labels, so that a probability near 1 keeps its digits.
    yes = torch.logsumexp(weights + logsigmoid(outputs), 0)
    no = torch.logsumexp(weights + logsigmoid(-outputs), 0)
    return yes - no


def mixed_log_probabilities(outputs: Tensor, mixture: Tensor) -> Tensor:
    """Return log sum_m pi_m softmax(outputs_m), of the shape of one model's outputs."""
    if outputs.shape[-1] == 1:
        return mixed_logits(outputs, mixture)
    weights = torch.log(aligned(mixture, outputs))
    return torch.logsumexp(weights + torch.log_softmax(outputs, -1), 0)


@dataclass(frozen=True)
class Loss:
    """A loss and the measure that belongs to it.

    ``perplexity`` says that the loss is -log p of a token on average over the positions, so that
    its exponential is the perplexity.
    """

    name: str
    measure: Literal["accuracy", "recall_at_5"] | None
    samples: Callable[[Tensor, Tensor], Tensor]
    slopes: Callable[[Tensor, Tensor], Tensor]
    hits: Callable[[Tensor, Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]
    of_mixture: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    mixed: Callable[[Tensor, Tensor], Tensor] = mixed_log_probabilities
    perplexity: bool = False

    def slopes_of_rows(self, outputs: Tensor, y: Tensor) -> Tensor:
        """Return ``slopes`` of (R, B, ...), whose bits do not depend on B: a vector loop of exp or
        log may compute its last numbers, fewer than a vector, by other instructions.
        """
        return self.slopes(in_lanes(outputs, 1), in_lanes(y, 1))[:, : y.shape[1]]


@dataclass(frozen=True)
class Score:
    """Loss, likelihood and hits of predictions on B samples."""

    loss: Tensor
    nll: Tensor
    hits: Tensor
    possible: Tensor


def score(loss: Loss, outputs: Tensor, y: Tensor, mixture: Tensor | None) -> Score:
    """Evaluate the predictor sum_m pi_m h_m (Marfoq et al. 2021, eq. 5) on B samples."""
    losses = loss.samples(outputs, y.expand(len(outputs), *y.shape))
    if mixture is None:
        deployed = nll = losses[0]
    else:
        deployed = nll = mixed_nll(losses, mixture)
        if loss.of_mixture is not None:
            deployed = loss.of_mixture(outputs, y, mixture)
    return Score(deployed, nll, *loss.hits(outputs, y, mixture, deployed))


def mixed_nll(losses: Tensor, mixture: Tensor) -> Tensor:
    """Return -log sum_m pi_m exp(-loss_m), (...), of losses (M, ...)."""
    joint = torch.log(aligned(mixture, losses)) - losses
    if len(joint) > FEW:
        return -torch.logsumexp(joint.movedim(0, -1).contiguous(), -1)
    # The same bits, which torch's sum of at most four numbers has in this order.
    highest = joint.amax(0)
    highest = highest.where(highest.isfinite(), 0)
    return -(reduce(torch.add, torch.exp(joint - highest).unbind(0)).log() + highest)


def right_labels(
    outputs: Tensor, y: Tensor, mixture: Tensor | None, losses: Tensor
) -> tuple[Tensor, Tensor]:
    """Return whether the most probable label is ``y``, and ones: bool (B,) each."""
    binary = outputs.shape[-1] == 1
    if mixture is None:
        right = (outputs[0, :, 0] > 0 if binary else outputs[0].argmax(-1)) == y
    elif binary:
        p_true = torch.exp(-losses)
        right = torch.where(y == 1, p_true > 0.5, p_true >= 0.5)
    else:
        right = likeliest(outputs, mixture) == y
    return right, torch.ones_like(right)


def likeliest(outputs: Tensor, mixture: Tensor | None) -> Tensor:
    """Return the most probable of several labels, int64 (...), for logits of M models."""
    likely = outputs[0] if mixture is None else _mixed_probabilities(outputs, mixture)
    return likely.argmax(-1)


def probabilities(outputs: Tensor, mixture: Tensor | None) -> Tensor:
    """Return sum_m pi_m p_m of B samples in float64: (B, classes), or (B,) of label 1 of two."""
    z = in_lanes(outputs.double(), 1)
    p = sigmoid(z[..., 0]) if z.shape[-1] == 1 else torch.softmax(z, -1)
    if mixture is None:
        return p[0, : outputs.shape[1]]
    pi = mixture.double()
    return mixed_output(p, pi if pi.dim() == 1 else in_lanes(pi, 1))[: outputs.shape[1]]


def right_positions(
    outputs: Tensor, y: Tensor, mixture: Tensor | None, losses: Tensor
) -> tuple[Tensor, Tensor]:
    """Return at how many positions the most probable label is ``y``, and L: int64 (B,) each."""
    right = (likeliest(outputs, mixture) == y).sum(-1)
    return right, torch.full_like(right, y.shape[-1])


def _mixed_probabilities(outputs: Tensor, mixture: Tensor) -> Tensor:
    """sum_m pi_m softmax(outputs_m), (...), of logits (M, ...)."""
    return mixed_output(torch.softmax(outputs, -1), mixture)


def tags_recalled(
    outputs: Tensor, y: Tensor, mixture: Tensor | None, losses: Tensor
) -> tuple[Tensor, Tensor]:
    """Return how many of a sample's tags are among the ``TOP`` likeliest, and how many it has."""
    scores = outputs[0]
    if mixture is not None:
        scores = mixed_output(sigmoid(outputs), mixture)
    best = scores.topk(min(TOP, scores.shape[-1]), -1).indices
    return y.gather(-1, best).sum(-1), y.sum(-1)


def nothing_to_hit(
    outputs: Tensor, y: Tensor, mixture: Tensor | None, losses: Tensor
) -> tuple[Tensor, Tensor]:
    """Return zeros, (B,) each: a regression has no hits."""
    nothing = outputs.new_zeros(len(y))
    return nothing, nothing


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean of the squared errors over the targets: (..., B, q) to (..., B)."""
    return (outputs - y).square().mean(-1)


def half_squared(outputs: Tensor, y: Tensor) -> Tensor:
    """Return half the sum of the squared errors over the targets: (..., B, q) to (..., B)."""
    return (outputs - y).square().sum(-1) / 2


def mixed_tags(outputs: Tensor, y: Tensor, mixture: Tensor) -> Tensor:
    """Return the mean over tags of the cross-entropy of sum_m pi_m p_m."""
    return mixed_nll(logistic(outputs, y.expand(len(outputs), *y.shape)), mixture).mean(-1)


def mixed_cross_entropy(outputs: Tensor, y: Tensor, mixture: Tensor) -> Tensor:
    """Return -log sum_m pi_m p_m(y), the shape of ``y``, for logits of M models."""
    return mixed_nll(cross_entropy(outputs, y.expand(len(outputs), *y.shape)), mixture)
