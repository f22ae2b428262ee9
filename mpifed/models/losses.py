"""Losses and hits of a model's outputs, for each task.

* classification: binary problems have one output, the logit of label 1; problems with K > 2 classes
  have K logits; ``y`` is int64 (..., B);
* sequence: K logits at each of L positions, (..., B, L, K), and ``y`` is int64 (..., B, L); the
  loss is the mean of the L cross-entropies;
* multi_label: q independent sigmoids, the loss is the mean of their q cross-entropies;
* regression: the mean of the q squared errors, or half their sum; ``y`` is floating (..., B, q).

In the shapes below, outputs stand for (L, K) where the task is sequence.

All functions on outputs work elementwise or on the last axis. They were chosen because a CPU
computes them alike at any position in a tensor, which does not hold for ``softplus`` or for a
softmax over another axis. A client's result therefore does not depend on its neighbours in a block;
``tests/mpifed/test_blocks.py`` checks it.

Negative log-likelihoods of labels under logits, element by element.

Outputs of mixtures: what one predictor sum_m pi_m h_m gives for the outputs of M models.

What the data ask of a model's outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from mpifed.data.base import Description
from mpifed.errors import InputError


def sigmoid(z: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-z)); overflow of exp gives the right limit, 0."""
    return 1 / (1 + torch.exp(-z))


def logistic(z: Tensor, y: Tensor) -> Tensor:
    """Return -log of the probability that a logit ``z`` gives to ``y`` in {0, 1}; elementwise.

    Examples
    --------
    >>> logistic(torch.tensor([0.0]), torch.tensor([1.0]))
    tensor([0.6931])
    """
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


def aligned(mixture: Tensor, outputs: Tensor) -> Tensor:
    """Return weights (M,) or (M, B) with as many axes as ``outputs``, (M, B, ...)."""
    return mixture.view(*mixture.shape, *[1] * (outputs.dim() - mixture.dim()))


def mixed_output(outputs: Tensor, mixture: Tensor) -> Tensor:
    """Return sum_m pi_m h_m, (B, outputs), added component by component."""
    return reduce(torch.add, (outputs * aligned(mixture, outputs)).unbind(0))


def mixed_logits(outputs: Tensor, mixture: Tensor) -> Tensor:
    """Return the logit of sum_m pi_m sigmoid(outputs_m), elementwise.

    Parameters
    ----------
    outputs : Tensor
        Logits of M models, (M, ...).
    mixture : Tensor
        pi, (M,) or for each sample (M, B), non-negative with sum 1.

    Returns
    -------
    Tensor
        (...).

    Examples
    --------
    >>> mixed_logits(torch.logit(torch.tensor([[0.9], [0.1]])), torch.tensor([0.5, 0.5]))
    tensor([0.])
    """
    weights = torch.log(aligned(mixture, outputs))
    # Of both labels, so that a probability near 1 keeps its digits.
    yes = torch.logsumexp(weights + logsigmoid(outputs), 0)
    no = torch.logsumexp(weights + logsigmoid(-outputs), 0)
    return yes - no


def mixed_log_probabilities(outputs: Tensor, mixture: Tensor) -> Tensor:
    """Return log sum_m pi_m softmax(outputs_m), of the shape of one model's outputs.

    Where the last axis has one output, the logit of label 1, the result is such a logit too.

    Parameters
    ----------
    outputs : Tensor
        Logits of M models, (M, ..., outputs).
    mixture : Tensor
        pi, (M,) or for each sample (M, B), non-negative with sum 1.

    Returns
    -------
    Tensor
        (..., outputs). Logits whose softmax is the mixture, where there are several outputs.

    Examples
    --------
    >>> outputs = torch.log(torch.tensor([[0.9, 0.1], [0.5, 0.5]]))
    >>> torch.exp(mixed_log_probabilities(outputs, torch.tensor([0.5, 0.5])))
    tensor([0.7000, 0.3000])
    """
    if outputs.shape[-1] == 1:
        return mixed_logits(outputs, mixture)
    weights = torch.log(aligned(mixture, outputs))
    return torch.logsumexp(weights + torch.log_softmax(outputs, -1), 0)


LossName = Literal["auto", "squared", "half_squared"]
TOP = 5
"""Number of guesses in recall at 5 (Gasanov et al. 2021, section 5.3)."""


@dataclass(frozen=True)
class Loss:
    """A loss and the measure that belongs to it.

    Attributes
    ----------
    name : str
        Name of the loss.
    measure : {'accuracy', 'recall_at_5'} or None
        What ``hits`` counts; None for regressions.
    samples : callable
        ``samples(outputs, y)``: loss of each sample, (..., B, outputs) to (..., B).
    slopes : callable
        ``slopes(outputs, y)``: derivative of ``samples``, shape of ``outputs``.
    hits : callable
        ``hits(outputs, y, mixture, losses)``: what each sample scores on ``measure``, and the
        most it could, (B,) each. ``outputs`` is (M, B, outputs), ``mixture`` (M,) or None where
        M is 1, ``losses`` the losses of the deployed predictor, (B,).
    of_mixture : callable or None
        ``of_mixture(outputs, y, mixture)``: loss (B,) of the prediction sum_m pi_m h_m. None
        where it is -log sum_m pi_m exp(-loss_m), as for probabilities of classes.
    mixed : callable
        ``mixed(outputs, mixture)``: outputs of that prediction, (M, B, outputs) to (B, outputs).
    """

    name: str
    measure: Literal["accuracy", "recall_at_5"] | None
    samples: Callable[[Tensor, Tensor], Tensor]
    slopes: Callable[[Tensor, Tensor], Tensor]
    hits: Callable[[Tensor, Tensor, Tensor | None, Tensor], tuple[Tensor, Tensor]]
    of_mixture: Callable[[Tensor, Tensor, Tensor], Tensor] | None = None
    mixed: Callable[[Tensor, Tensor], Tensor] = mixed_log_probabilities


@dataclass(frozen=True)
class Score:
    """Loss, likelihood and hits of predictions on B samples.

    Attributes
    ----------
    loss : Tensor
        Loss of the deployed predictor, (B,).
    nll : Tensor
        Negative log-likelihood of the mixture of distributions, up to a constant, (B,).
    hits : Tensor
        What each sample scores on the measure, (B,).
    possible : Tensor
        The most that it could score, (B,).
    """

    loss: Tensor
    nll: Tensor
    hits: Tensor
    possible: Tensor


def loss_for(task: str, name: LossName = "auto") -> Loss:
    """Return the loss of a task.

    Parameters
    ----------
    task : str
        A task of ``mpifed.data.base.Task``.
    name : {'auto', 'squared', 'half_squared'}
        Which of the two losses of a regression; other tasks have one.

    Returns
    -------
    Loss

    Examples
    --------
    >>> loss_for("regression", "half_squared").name
    'half_squared'
    >>> loss_for("classification").measure, loss_for("sequence").measure
    ('accuracy', 'accuracy')
    """
    if task == "multi_label":
        return MULTI_LABEL
    if task == "sequence":
        return SEQUENCE
    if task == "regression":
        return HALF_SQUARED if name == "half_squared" else SQUARED
    return CROSS_ENTROPY


def score(loss: Loss, outputs: Tensor, y: Tensor, mixture: Tensor | None) -> Score:
    """Evaluate the predictor sum_m pi_m h_m (Marfoq et al. 2021, eq. 5) on B samples.

    Parameters
    ----------
    loss : Loss
        Loss of the task.
    outputs : Tensor
        Outputs of M models, (M, B, outputs).
    y : Tensor
        Targets, (B, ...).
    mixture : Tensor or None
        Weights pi, (M,) or for each sample (M, B), or None where M is 1.

    Returns
    -------
    Score
        Its ``nll`` is -log sum_m pi_m exp(-loss_m), the likelihood of the mixture of distributions
        that FedEM maximises (eq. 6). Its ``loss`` is the same for classes, where probabilities are
        mixed. It differs for regressions and tags: there the loss of the mixed prediction is taken.
    """
    losses = loss.samples(outputs, y.expand(len(outputs), *y.shape))
    if mixture is None:
        deployed = nll = losses[0]
    else:
        deployed = nll = _mixed_nll(losses, mixture)
        if loss.of_mixture is not None:
            deployed = loss.of_mixture(outputs, y, mixture)
    return Score(deployed, nll, *loss.hits(outputs, y, mixture, deployed))


def likelihood_differs(loss: Loss) -> bool:
    """Return whether the loss of a mixed prediction differs from the mixture's likelihood."""
    return loss.of_mixture is not None


def _mixed_nll(losses: Tensor, mixture: Tensor) -> Tensor:
    """-log sum_m pi_m exp(-loss_m), (...), of losses (M, ...)."""
    weights = torch.log(aligned(mixture, losses))
    return -torch.logsumexp((weights - losses).movedim(0, -1).contiguous(), -1)


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
        right = _mixed_probabilities(outputs, mixture).argmax(-1) == y
    return right, torch.ones_like(right)


def right_positions(
    outputs: Tensor, y: Tensor, mixture: Tensor | None, losses: Tensor
) -> tuple[Tensor, Tensor]:
    """Return at how many positions the most probable label is ``y``, and L: int64 (B,) each."""
    likely = outputs[0] if mixture is None else _mixed_probabilities(outputs, mixture)
    right = (likely.argmax(-1) == y).sum(-1)
    return right, torch.full_like(right, y.shape[-1])


def _mixed_probabilities(outputs: Tensor, mixture: Tensor) -> Tensor:
    """sum_m pi_m softmax(outputs_m), (...), of logits (M, ...)."""
    return (torch.softmax(outputs, -1) * aligned(mixture, outputs)).sum(0)


def tags_recalled(
    outputs: Tensor, y: Tensor, mixture: Tensor | None, losses: Tensor
) -> tuple[Tensor, Tensor]:
    """Return how many of a sample's tags are among the ``TOP`` likeliest, and how many it has.

    Both are (B,). With fewer than ``TOP`` tags in all, every one counts as found.
    """
    scores = outputs[0]
    if mixture is not None:
        scores = (sigmoid(outputs) * aligned(mixture, outputs)).sum(0)
    best = scores.topk(min(TOP, scores.shape[-1]), -1).indices
    return y.gather(-1, best).sum(-1), y.sum(-1)


def nothing_to_hit(
    outputs: Tensor, y: Tensor, mixture: Tensor | None, losses: Tensor
) -> tuple[Tensor, Tensor]:
    """Return zeros, (B,) each: a regression has no hits."""
    nothing = outputs.new_zeros(len(y))
    return nothing, nothing


def squared(outputs: Tensor, y: Tensor) -> Tensor:
    """Return the mean of the squared errors over the targets: (..., B, q) to (..., B).

    Examples
    --------
    >>> squared(torch.tensor([[1.0, 3.0]]), torch.zeros(1, 2))
    tensor([5.])
    """
    return (outputs - y).square().mean(-1)


def half_squared(outputs: Tensor, y: Tensor) -> Tensor:
    """Return half the sum of the squared errors over the targets: (..., B, q) to (..., B)."""
    return (outputs - y).square().sum(-1) / 2


def mixed_tags(outputs: Tensor, y: Tensor, mixture: Tensor) -> Tensor:
    """Return the mean over tags of the cross-entropy of sum_m pi_m p_m.

    Parameters
    ----------
    outputs : Tensor
        Logits of M models, (M, B, q).
    y : Tensor
        0 or 1 for each tag, floating-point (B, q).
    mixture : Tensor
        pi, (M,).

    Returns
    -------
    Tensor
        (B,).
    """
    return _mixed_nll(logistic(outputs, y.expand(len(outputs), *y.shape)), mixture).mean(-1)


def mixed_cross_entropy(outputs: Tensor, y: Tensor, mixture: Tensor) -> Tensor:
    """Return -log sum_m pi_m p_m(y), the shape of ``y``, for logits of M models."""
    return _mixed_nll(cross_entropy(outputs, y.expand(len(outputs), *y.shape)), mixture)


CROSS_ENTROPY = Loss("cross_entropy", "accuracy", cross_entropy, cross_entropy_slopes, right_labels)
SEQUENCE = Loss(
    "sequence",
    "accuracy",
    lambda outputs, y: cross_entropy(outputs, y).mean(-1),
    lambda outputs, y: cross_entropy_slopes(outputs, y) / y.shape[-1],
    right_positions,
    lambda outputs, y, mixture: mixed_cross_entropy(outputs, y, mixture).mean(-1),
)
MULTI_LABEL = Loss(
    "multi_label",
    "recall_at_5",
    lambda outputs, y: logistic(outputs, y).mean(-1),
    lambda outputs, y: (sigmoid(outputs) - y) / y.shape[-1],
    tags_recalled,
    mixed_tags,
    mixed_logits,
)
SQUARED = Loss(
    "squared",
    None,
    squared,
    lambda outputs, y: (outputs - y) * (2 / y.shape[-1]),
    nothing_to_hit,
    lambda outputs, y, mixture: squared(mixed_output(outputs, mixture), y),
    mixed_output,
)
HALF_SQUARED = Loss(
    "half_squared",
    None,
    half_squared,
    lambda outputs, y: outputs - y,
    nothing_to_hit,
    lambda outputs, y, mixture: half_squared(mixed_output(outputs, mixture), y),
    mixed_output,
)


def refuse_sequences(data: Description, model: str) -> None:
    """Refuse data that have a target at each position, for models with one output a sample.

    Parameters
    ----------
    data : Description
        What the samples are.
    model : str
        Name of the model, for the message.

    Raises
    ------
    InputError
        Where the task is sequence.
    """
    if data.task == "sequence":
        raise InputError(
            f"model '{model}' gives one output for a sample, but the task of '{data.source}' is "
            "sequence; allowed: lstm, or a torch module"
        )
