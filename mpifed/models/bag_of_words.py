"""A bag of words: the mean of the embeddings of a text's tokens, and a linear layer.

With E, (V, d), the embeddings of V tokens, and f, (V,), the share of each among the tokens of a
text, padding excluded, the outputs are W E' f + b (Joulin et al. 2017, arXiv:1607.01759, section
2, without n-grams).
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge
from torch import Tensor

from mpifed.data.base import Description
from mpifed.models.images import ShippedNetwork
from mpifed.models.texts import check_tokens_of


class BagOfWords(ShippedNetwork):
    """The mean embedding of the tokens of a text, and one linear layer."""

    def __init__(self, vocabulary: int, n_outputs: int, is_padded: bool, embedding: int) -> None:
        super().__init__()
        self.n_tokens, self.is_padded = vocabulary, is_padded
        self.embedding = torch.nn.Embedding(vocabulary, embedding)
        self.output = torch.nn.Linear(embedding, n_outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for tokens, whole numbers of any type, (B, L) to (B, outputs)."""
        is_token = x != 0 if self.is_padded else torch.ones_like(x, dtype=torch.bool)
        counts = is_token.to(self.output.weight.dtype)
        shares = counts / counts.sum(-1, keepdim=True).clamp(min=1)
        return self.output((self.embedding(x.long()) * shares.unsqueeze(-1)).sum(-2))


def bag_of_words(
    data: Description,
    *,
    vocabulary: Annotated[int, Ge(1)] | None = None,
    embedding: Annotated[int, Ge(1)] = 32,
    weights: str | None = None,
    new_classifier: bool = False,
) -> ShippedNetwork:
    """Mean of embedded tokens, whatever their order, and a linear layer.

    Parameters
    ----------
    data : Description
        What the samples are: (L,) codes of tokens; 0 is padding where the data are texts of unequal
        length.
    vocabulary : int, optional
        Number of tokens of inputs. None is that of the data, else the number of labels.
    embedding : int
        Dimension in which tokens are embedded.
    weights : str, optional
        File with the first parameters, a state dict of torch.save. None draws them.
    new_classifier : bool
        Draw the last layer although weights are given.
    """
    check_tokens_of(data, "bag_of_words")
    n_tokens = vocabulary or data.n_tokens or data.n_classes
    network = BagOfWords(n_tokens, data.n_outputs, data.n_tokens is not None, embedding)
    return network.drawn(weights, new_classifier)
