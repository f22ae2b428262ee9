"""Stacked LSTMs that predict the next character (Marfoq et al. 2021, appendix I.1.4)."""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.models.class_weights import Weighting, weighted_loss
from mpifed.models.losses import CROSS_ENTROPY, Loss
from mpifed.models.pretrained import Network


class StackedLstm(Network):
    """An embedding of characters, LSTM layers, and one linear layer.

    Parameters
    ----------
    vocabulary : int
        Number of characters of inputs.
    n_outputs : int
        Numbers given at a position.
    every_position : bool
        Give outputs at all positions, not at the last one only.
    embedding, hidden, layers : int
        Dimensions of the embedding and of a layer's state; number of layers.
    loss : Loss
        Training loss.
    weights, new_classifier
        As for ``Network``.
    """

    def __init__(
        self,
        vocabulary: int,
        n_outputs: int,
        every_position: bool = True,
        embedding: int = 8,
        hidden: int = 256,
        layers: int = 2,
        loss: Loss = CROSS_ENTROPY,
        weights: str | None = None,
        new_classifier: bool = False,
    ) -> None:
        super().__init__(weights, new_classifier)
        self.every_position, self.loss = every_position, loss
        self.embedding = torch.nn.Embedding(vocabulary, embedding)
        self.lstm = torch.nn.LSTM(embedding, hidden, layers, batch_first=True)
        self.output = torch.nn.Linear(hidden, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for codes of characters, whole numbers of any type.

        Parameters
        ----------
        x : Tensor
            (B, L).

        Returns
        -------
        Tensor
            (B, L, n_outputs), or (B, n_outputs) without ``every_position``.

        Raises
        ------
        InputError
            Where a code is not one of 0 .. vocabulary - 1.
        """
        codes = x.long()
        size = self.embedding.num_embeddings
        if bool(((codes < 0) | (codes >= size) | (codes != x)).any()):
            raise InputError(
                f"model 'lstm' takes codes of characters, whole numbers from 0 to {size - 1}, but "
                f"a sample holds values from {x.min():g} to {x.max():g}; use data of characters, "
                "or a larger model.vocabulary"
            )
        states, _ = self.lstm(self.embedding(codes))
        return self.output(states if self.every_position else states[:, -1])


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
) -> StackedLstm:
    """Stacked LSTM over characters; it predicts at every position (sequence) or after the last one.

    Parameters
    ----------
    data : Description
        What the samples are: (L,) codes of characters.
    vocabulary : int, optional
        Number of characters of inputs. None is the number of labels.
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

    Raises
    ------
    InputError
        Where samples are not sequences of characters, or labels are not counted.
    """
    if len(data.input_shape) != 1 or data.task not in ("sequence", "classification"):
        raise InputError(
            "model 'lstm' needs samples of shape (L,), codes of characters, and the task sequence "
            f"or classification, but '{data.source}' has samples of shape {data.input_shape} and "
            f"the task {data.task}; use cnn for images, mlp or linear for others"
        )
    made = StackedLstm(
        vocabulary or data.n_classes,
        data.n_outputs,
        data.task == "sequence",
        embedding,
        hidden,
        layers,
        weighted_loss(data, weighting),
        weights,
        new_classifier,
    )
    made.reset_parameters()
    return made
