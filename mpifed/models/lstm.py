"""Stacked LSTMs that predict the next character (Marfoq et al. 2021, appendix I.1.4).
``weighted_loss`` makes the cross-entropies of that appendix, in which rare labels count for more.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Literal

import numpy as np
import torch
from annotated_types import Ge, Le
from torch import Tensor

from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.models.images import ShippedNetwork
from mpifed.models.loss import Loss, cross_entropy, cross_entropy_slopes, mixed_cross_entropy
from mpifed.models.losses import CROSS_ENTROPY, loss_for
from mpifed.models.texts import at_last_token, check_no_columns

Weighting = Literal["none", "inverse_frequency", "published"]

# Factor of all weights in the published code.
PUBLISHED_SCALE = 8.0

# Share of all characters above which a character's weight falls in the published code.
PUBLISHED_RATE = 0.0114


def class_weights(counts: np.ndarray, weighting: Weighting) -> np.ndarray:
    """Return the weight of each label."""
    if weighting == "none":
        return np.ones(len(counts))
    shares = np.maximum(counts, 1) / max(counts.sum(), 1)
    if weighting == "published":
        return PUBLISHED_SCALE * np.minimum(1, PUBLISHED_RATE / shares)
    return 1 / (shares * np.count_nonzero(counts))


def weighted_loss(data: Description, weighting: Weighting) -> Loss:
    """Return the loss of a classification or of sequences, weighted by label."""
    loss = loss_for(data.task)
    if weighting == "none":
        return loss
    if data.label_counts is None or not data.label_counts.any():
        raise InputError(
            f"model.weighting is {weighting}, but the data set '{data.source}' does not count its "
            "labels; allowed here: none"
        )
    weights = torch.from_numpy(class_weights(data.label_counts, weighting))

    def of(outputs: Tensor, y: Tensor) -> Tensor:
        return weights.to(outputs)[y]

    def mean(values: Tensor) -> Tensor:
        return values.mean(-1) if data.task == "sequence" else values

    def slopes(outputs: Tensor, y: Tensor) -> Tensor:
        positions = y.shape[-1] if data.task == "sequence" else 1
        return cross_entropy_slopes(outputs, y) * of(outputs, y).unsqueeze(-1) / positions

    return replace(
        loss,
        name=f"weighted_{loss.name}",
        perplexity=False,
        samples=lambda outputs, y: mean(of(outputs, y) * cross_entropy(outputs, y)),
        slopes=slopes,
        of_mixture=lambda outputs, y, mixture: mean(
            of(outputs, y) * mixed_cross_entropy(outputs, y, mixture)
        ),
    )


class StackedLstm(ShippedNetwork):
    """An embedding of characters, LSTM layers, and one linear layer."""

    def __init__(
        self,
        vocabulary: int,
        n_outputs: int,
        every_position: bool = True,
        embedding: int = 8,
        hidden: int = 256,
        layers: int = 2,
        loss: Loss = CROSS_ENTROPY,
        is_padded: bool = False,
    ) -> None:
        super().__init__()
        self.every_position, self.loss, self.n_tokens = every_position, loss, vocabulary
        self.is_padded = is_padded
        self.embedding = torch.nn.Embedding(vocabulary, embedding)
        self.lstm = torch.nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = torch.nn.Linear(hidden, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for codes of characters, whole numbers of any type."""
        states, _ = self.lstm(self.embedding(x.long()))
        if not self.every_position:
            states = at_last_token(states, x, self.is_padded)
        return self.output(states)


def lstm(
    data: Description,
    *,
    vocabulary: Annotated[int, Ge(1)] | None = None,
    embedding: Annotated[int, Ge(1)] = 8,
    hidden: Annotated[int, Ge(1)] = 256,
    layers: Annotated[int, Ge(1), Le(100)] = 2,
    weighting: Weighting = "none",
    weights: str | None = None,
    new_classifier: bool = False,
) -> ShippedNetwork:
    """Stacked LSTM over characters; it predicts at every position or after the last one.

    Parameters
    ----------
    data : Description
        What the samples are: (L,) codes of characters.
    vocabulary : int, optional
        Number of characters of inputs. None is that of the data, else the number of labels.
    embedding : int
        Dimension in which characters are embedded.
    hidden : int
        Dimension of a layer's state.
    layers : int
        Number of LSTM layers.
    weighting : {'none', 'inverse_frequency', 'published'}
        Weight of a character's loss: 1, 1 / f divided by its mean, or 8 min(1, 0.0114 / f).
    weights : str, optional
        File with the first parameters, a state dict of torch.save. None draws them.
    new_classifier : bool
        Draw the last layer although weights are given.
    """
    check_no_columns(data, "lstm")
    if len(data.input_shape) != 1 or data.task not in ("sequence", "classification"):
        raise InputError(
            "model 'lstm' needs samples of shape (L,), codes of characters, and the task sequence "
            f"or classification, but '{data.source}' has samples of shape {data.input_shape} and "
            f"the task {data.task}; use cnn for images, mlp or linear for others"
        )
    network = StackedLstm(
        vocabulary or data.n_tokens or data.n_classes,
        data.n_outputs,
        data.task == "sequence",
        embedding,
        hidden,
        layers,
        weighted_loss(data, weighting),
        data.n_tokens is not None,
    )
    return network.drawn(weights, new_classifier)
