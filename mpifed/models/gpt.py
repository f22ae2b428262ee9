"""GPT: a decoder of transformer blocks, which predicts the next token.

For L tokens t, an embedding E, (V, d), and in every block H heads of d / H numbers,

    x = E[t]
    x <- x + O (softmax(R(Q n) R(K n)' / (d / H)^(1/2)) V n),   n = norm(x),   for each head
    x <- x + W_2 gelu(W_1 norm(x))
    logits = norm(x) E'

A position sees itself and those before it. Blocks normalise first and are drawn as in GPT-2
(Radford et al. 2019), without biases and without dropout. R turns pairs of numbers by angles
that grow with the position (Su et al. 2021, arXiv:2104.09864, eq. 34). The last layer has the
numbers of the embedding (Press and Wolf 2017, arXiv:1608.05859).
"""

from __future__ import annotations

from typing import Annotated

import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention

from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.io.memory import check_memory
from mpifed.models.adapters import Lora, adapt
from mpifed.models.images import ShippedNetwork
from mpifed.models.texts import at_last_token

# Standard deviation of first weights in GPT-2.
SPREAD = 0.02


def rotated(x: Tensor, base: float) -> Tensor:
    """Return (..., L, w) with pair i of position l turned by the angle l base^(-2 i / w)."""
    length, width = x.shape[-2:]
    speeds = base ** (-torch.arange(0, width, 2, dtype=torch.float64, device=x.device) / width)
    angles = torch.arange(length, dtype=torch.float64, device=x.device)[:, None] * speeds
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    first, second = x[..., 0::2], x[..., 1::2]
    return torch.stack([first * cos - second * sin, first * sin + second * cos], -1).flatten(-2)


class Block(nn.Module):
    """Attention over the positions so far, then a dense layer at each."""

    def __init__(self, width: int, heads: int, base: float) -> None:
        super().__init__()
        self.heads, self.base = heads, base
        self.norm1, self.norm2 = (nn.LayerNorm(width, bias=False) for _ in range(2))
        self.query, self.key, self.value, self.mix = (
            nn.Linear(width, width, bias=False) for _ in range(4)
        )
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return the states after the block, (B, L, width)."""
        n = self.norm1(x)
        q, k, v = (
            layer(n).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        q, k = rotated(q, self.base), rotated(k, self.base)
        seen = scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(seen.transpose(1, 2).flatten(-2))
        return x + self.down(gelu(self.up(self.norm2(x))))


class Gpt(ShippedNetwork):
    """An embedding of tokens, blocks, and one linear layer, which may be the embedding."""

    def __init__(
        self,
        vocabulary: int,
        n_outputs: int,
        every_position: bool = True,
        width: int = 192,
        layers: int = 4,
        heads: int = 6,
        rotary_base: float = 10_000.0,
        tied: bool = True,
        is_padded: bool = False,
    ) -> None:
        super().__init__()
        self.every_position, self.n_tokens = every_position, vocabulary
        self.is_padded = is_padded
        # Before the embedding, so that numbers of both have the name of the last layer.
        self.output = nn.Linear(width, n_outputs, bias=False)
        self.embedding = nn.Embedding(vocabulary, width)
        if tied:
            self.embedding.weight = self.output.weight
        self.blocks = nn.ModuleList(Block(width, heads, rotary_base) for _ in range(layers))
        self.norm = nn.LayerNorm(width, bias=False)

    def draw(self) -> None:
        """Draw weights as in GPT-2: those added to the states are smaller the more blocks."""
        for name, part in self.named_modules():
            if isinstance(part, nn.LayerNorm):
                part.reset_parameters()
            elif isinstance(part, nn.Linear | nn.Embedding):
                added = name.endswith((".mix", ".down"))
                spread = SPREAD / (2 * len(self.blocks)) ** 0.5 if added else SPREAD
                nn.init.normal_(part.weight, std=spread)

    def forward(self, x: Tensor) -> Tensor:
        """Return the outputs for tokens, whole numbers of any type."""
        states = self.embedding(x.long())
        for block in self.blocks:
            states = block(states)
        if not self.every_position:
            states = at_last_token(states, x, self.is_padded)
        return self.output(self.norm(states))


def gpt(
    data: Description,
    *,
    vocabulary: Annotated[int, Ge(1)] | None = None,
    width: Annotated[int, Ge(2)] = 192,
    layers: Annotated[int, Ge(1), Le(100)] = 4,
    heads: Annotated[int, Ge(1)] = 6,
    rotary_base: Annotated[float, Gt(1)] = 10_000.0,
    tied: bool = True,
    adapter: Lora | None = None,
    weights: str | None = None,
    new_classifier: bool = False,
) -> ShippedNetwork:
    """Decoder-only transformer over tokens; it predicts at every position or after the last one.

    Parameters
    ----------
    data : Description
        What the samples are: (L,) codes of tokens.
    vocabulary : int, optional
        Number of tokens of inputs. None is that of the data, else the number of labels.
    width : int
        Numbers of a position's state, a multiple of 2 ``heads``.
    layers : int
        Number of blocks.
    heads : int
        Heads of the attention.
    rotary_base : float
        Base of the angles by which positions are turned.
    tied : bool
        Whether the last layer is the embedding.
    adapter : Lora, optional
        Low-rank matrices that are trained in place of the weights: ``rank``, ``alpha`` and
        ``layers``.
    weights : str, optional
        File with the first parameters, a state dict of torch.save. None draws them.
    new_classifier : bool
        Draw the last layer although weights are given.
    """
    every, few = data.task == "sequence", data.n_classes <= 2
    if len(data.input_shape) != 1 or (not every and (data.task != "classification" or few)):
        raise InputError(
            "model 'gpt' needs samples of shape (L,), codes of tokens, and the task sequence or "
            f"classification of more than two, but '{data.source}' has samples of shape "
            f"{data.input_shape} and the task {data.task} of {data.n_classes}; use cnn for images, "
            "mlp or linear for others"
        )
    if width % (2 * heads):
        raise InputError(
            f"model.width is {width}; it must be a multiple of 2 model.heads, {2 * heads}"
        )
    tokens, is_padded = vocabulary or data.n_tokens or data.n_classes, data.n_tokens is not None
    if tied and tokens != data.n_outputs:
        raise InputError(
            f"model.tied is true, but there are {tokens} tokens and {data.n_outputs} outputs; "
            "allowed here: false"
        )
    numbers = width * (2 * tokens - tied * tokens + 12 * layers * width)
    # A network, and a row of its numbers.
    check_memory(8.0 * numbers, f"model 'gpt' has about {numbers:,} parameters, which")
    network = Gpt(tokens, data.n_outputs, every, width, layers, heads, rotary_base, tied, is_padded)
    return adapt(network.drawn(weights, new_classifier), adapter)
