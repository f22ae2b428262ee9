"""Copies of tensors in the host's memory, where MPI and numpy need them.

MPI is given host memory alone: exact sums and products are made of integers there, so a message
never is a tensor of a GPU. What comes from a GPU goes through page-locked memory, which torch keeps
and hands out again.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def host_memory(like: Tensor) -> Tensor:
    """Return uninitialised host memory for a copy, page-locked where ``like`` is on a GPU.

    Parameters
    ----------
    like : Tensor
        A tensor of the same shape and type.

    Returns
    -------
    Tensor
        Contiguous, on the CPU.
    """
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=like.device.type != "cpu")


def on_host(tensor: Tensor) -> np.ndarray:
    """Return the numbers of a tensor as an array, without a copy where they are on the CPU.

    Parameters
    ----------
    tensor : Tensor
        On any device.

    Returns
    -------
    ndarray
        Of the same shape and type.

    Examples
    --------
    >>> on_host(torch.ones(2))
    array([1., 1.], dtype=float32)
    """
    own = tensor.detach()
    if own.device.type != "cpu":
        own = host_memory(own).copy_(own)
    return own.numpy()
