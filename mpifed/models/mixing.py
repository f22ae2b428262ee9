"""Outputs of mixtures: what one predictor sum_m pi_m h_m gives for the outputs of M models."""

from __future__ import annotations

from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


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
