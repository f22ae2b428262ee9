"""Texts of unequal length as tokens of one length, of which token 0 is padding."""

from __future__ import annotations

import torch
from torch import Tensor

from mpifed.data.base import Description
from mpifed.errors import InputError


def check_tokens_of(data: Description, model: str) -> None:
    """Refuse data whose samples are no row of tokens with one target."""
    check_no_columns(data, model)
    if len(data.input_shape) != 1 or data.task == "sequence":
        raise InputError(
            f"model '{model}' needs samples of shape (L,), codes of tokens, with one target each, "
            f"but '{data.source}' has samples of shape {data.input_shape} and the task {data.task}"
        )


def check_no_columns(data: Description, model: str) -> None:
    """Refuse tables whose texts have become columns of 0 and 1, for models of tokens."""
    preprocessing = data.preprocessing
    if preprocessing is not None and preprocessing.categories and data.n_tokens is None:
        raise InputError(
            f"model '{model}' reads tokens, but the texts of '{data.source}' have become columns "
            "of 0 and 1; allowed: data.name=labelled_texts with data.features=COLUMN, or mlp"
        )


def lengths(x: Tensor) -> Tensor:
    """Return how many tokens are before the padding, and at least 1: (B, L) to int64 (B,).

    Examples
    --------
    >>> lengths(torch.tensor([[7, 3, 0, 0], [0, 0, 0, 0]]))
    tensor([2, 1])
    """
    return (x != 0).sum(-1).clamp(min=1)


def at_last_token(states: Tensor, x: Tensor, is_padded: bool) -> Tensor:
    """Return the states (B, L, width) of a network at the last token of each sample, (B, width)."""
    if not is_padded:
        return states[:, -1]
    last = (lengths(x) - 1)[:, None, None].expand(-1, 1, states.shape[-1])
    return torch.gather(states, 1, last).squeeze(1)
