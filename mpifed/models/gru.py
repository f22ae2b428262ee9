"""A gated recurrent unit over tokens (Cho et al. 2014, arXiv:1406.1078), read at the last one, so
that a text's outputs do not depend on the padding behind it.
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Le
from torch import Tensor

from mpifed.data.base import Description
from mpifed.models.images import ShippedNetwork
from mpifed.models.texts import at_last_token, check_tokens_of


class Gru(ShippedNetwork):
    """An embedding of tokens, GRU layers, and one linear layer after the last token."""

    def __init__(
        self,
        vocabulary: int,
        n_outputs: int,
        is_padded: bool,
        embedding: int = 32,
        hidden: int = 32,
        layers: int = 1,
    ) -> None:
        super().__init__()
        self.n_tokens, self.is_padded = vocabulary, is_padded
        self.embedding = torch.nn.Embedding(vocabulary, embedding)
        self.gru = torch.nn.GRU(embedding, hidden, layers, batch_first=True)
        self.output = torch.nn.Linear(hidden, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for tokens, whole numbers of any type, (B, L) to (B, outputs)."""
        states, _ = self.gru(self.embedding(x.long()))
        return self.output(at_last_token(states, x, self.is_padded))


def gru(
    data: Description,
    *,
    vocabulary: Annotated[int, Ge(1)] | None = None,
    embedding: Annotated[int, Ge(1)] = 32,
    hidden: Annotated[int, Ge(1)] = 32,
    layers: Annotated[int, Ge(1), Le(100)] = 1,
    weights: str | None = None,
    new_classifier: bool = False,
) -> ShippedNetwork:
    """Small gated recurrent network over tokens, which predicts after the last one.

    Parameters
    ----------
    data : Description
        What the samples are: (L,) codes of tokens; 0 is padding where the data are texts of unequal
        length.
    vocabulary : int, optional
        Number of tokens of inputs. None is that of the data, else the number of labels.
    embedding : int
        Dimension in which tokens are embedded.
    hidden : int
        Dimension of a layer's state.
    layers : int
        Number of GRU layers.
    weights : str, optional
        File with the first parameters, a state dict of torch.save. None draws them.
    new_classifier : bool
        Draw the last layer although weights are given.
    """
    check_tokens_of(data, "gru")
    n_tokens, is_padded = vocabulary or data.n_tokens or data.n_classes, data.n_tokens is not None
    network = Gru(n_tokens, data.n_outputs, is_padded, embedding, hidden, layers)
    return network.drawn(weights, new_classifier)
