"""Which torch modules are stepped as stacked rows."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor, nn

# Parameters up to which dense networks are stacked; see ``scripts/bench ways_of_stepping``.
SMALL = 1 << 15

# Layers whose stacked products are about as fast as single ones.
DENSE = (nn.Linear, nn.LayerNorm)


def is_dense(network: nn.Module) -> bool:
    """Return whether all parameters of a network belong to layers of ``DENSE``."""
    owners = (m for m in network.modules() if any(True for _ in m.parameters(recurse=False)))
    return all(isinstance(owner, DENSE) for owner in owners)


def can_be_stacked(logits: Callable[[Tensor, Tensor], Tensor], rows: Tensor, x: Tensor) -> bool:
    """Return whether rows can be computed at once; vmap refuses branches and changes in place."""
    leaf = rows.detach().requires_grad_()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of vmap, about layers that it computes slowly
            torch.autograd.grad(logits(leaf, x).sum(), leaf)
    except Exception:
        return False
    return True
