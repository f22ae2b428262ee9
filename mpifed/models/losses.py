"""The loss of each task, and losses of your own."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.models.loss import (
    Loss,
    cross_entropy,
    cross_entropy_slopes,
    half_squared,
    logistic,
    mixed_cross_entropy,
    mixed_logits,
    mixed_output,
    mixed_tags,
    nothing_to_hit,
    right_labels,
    right_positions,
    score,
    sigmoid,
    squared,
    tags_recalled,
)

LossName = Literal["auto", "squared", "half_squared"]

CROSS_ENTROPY = Loss("cross_entropy", "accuracy", cross_entropy, cross_entropy_slopes, right_labels)
SEQUENCE = Loss(
    "sequence",
    "accuracy",
    lambda outputs, y: cross_entropy(outputs, y).mean(-1),
    lambda outputs, y: cross_entropy_slopes(outputs, y) / y.shape[-1],
    right_positions,
    lambda outputs, y, mixture: mixed_cross_entropy(outputs, y, mixture).mean(-1),
    perplexity=True,
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


def loss_for(task: str, name: LossName = "auto") -> Loss:
    """Return the loss of a task."""
    if task == "multi_label":
        return MULTI_LABEL
    if task == "sequence":
        return SEQUENCE
    if task == "regression":
        return HALF_SQUARED if name == "half_squared" else SQUARED
    return CROSS_ENTROPY


def own_loss(samples: Callable[[Tensor, Tensor], Tensor], like: Loss = CROSS_ENTROPY) -> Loss:
    """Return a loss of your own, for the attribute ``loss`` of a network.

    Parameters
    ----------
    samples : callable
        ``samples(outputs, y)``: the loss of each sample, of the shape of ``y`` without the axes of
        a sample. ``outputs`` may have an axis of models in front, which ``y`` then has too.
    like : Loss
        That of the task, whose measure stays: ``CROSS_ENTROPY``, ``SEQUENCE``, ``MULTI_LABEL`` or
        ``SQUARED``.
    """

    def slopes(outputs: Tensor, y: Tensor) -> Tensor:
        gradient: Tensor = torch.func.grad(lambda z: samples(z, y).sum())(outputs)
        return gradient

    def hits(
        outputs: Tensor, y: Tensor, mixture: Tensor | None, losses: Tensor
    ) -> tuple[Tensor, Tensor]:
        usual = score(like, outputs, y, mixture)
        return usual.hits, usual.possible

    def of_mixture(outputs: Tensor, y: Tensor, mixture: Tensor) -> Tensor:
        return samples(like.mixed(outputs, mixture), y)

    mixing = None if like.of_mixture is None else of_mixture
    name = getattr(samples, "__name__", "own")
    loss = replace(like, name=name, samples=samples, slopes=slopes, hits=hits, of_mixture=mixing)
    return replace(loss, perplexity=False)


def check_numbers(data: Description, model: str) -> None:
    """Refuse data that are tokens, or have a target at each position, for models of numbers with
    one output a sample.
    """
    if data.n_tokens is not None:
        raise InputError(
            f"model '{model}' takes numbers, but samples of '{data.source}' are tokens of texts; "
            "allowed: bag_of_words, gru, lstm, or a torch module"
        )
    if data.task == "sequence":
        raise InputError(
            f"model '{model}' gives one output for a sample, but the task of the data is sequence; "
            "allowed: lstm, or a torch module"
        )
