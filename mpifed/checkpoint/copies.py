"""The tensors of a state as a checkpoint takes them, and a copy of them to write from.

A round goes on as soon as the state is copied; the copy is what is written. The memory of the copy
is kept from one checkpoint to the next, so that later copies touch no fresh pages.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed import state as states


@dataclass(frozen=True)
class Part:
    """One tensor of a state, in the host's memory.

    ``values`` holds the rows of the clients hosted here (``is_rows``), or what the server owns.
    """

    name: str
    values: np.ndarray
    is_rows: bool

    @property
    def row_bytes(self) -> int:
        """Bytes of one client's row; of the whole where it is the server's."""
        shape = self.values.shape[1:] if self.is_rows else self.values.shape
        return int(np.prod(shape, dtype=np.int64)) * self.values.itemsize


def parts(state: Any, shared_is_rows: bool) -> list[Part]:
    """The tensors of ``state`` themselves, where the host can reach them."""
    return [
        Part(name, tensor.detach().cpu().numpy(), is_rows)
        for name, tensor, is_rows in states.tensors(state, shared_is_rows)
    ]


class Staging:
    """Memory for one copy of a state."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, state: Any, shared_is_rows: bool, server: bool) -> list[Part]:
        """The tensors of ``state``, copied; those of the server only if ``server``.

        The next copy overwrites this one.
        """
        made = []
        for name, tensor, is_rows in states.tensors(state, shared_is_rows):
            if is_rows or server:
                buffer = self._buffer(name, tensor)
                buffer.copy_(tensor.detach())
                made.append(Part(name, buffer.numpy(), is_rows))
        return made

    def _buffer(self, name: str, tensor: Tensor) -> Tensor:
        kept = self._buffers.get(name)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = torch.empty(tensor.shape, dtype=tensor.dtype)
            self._buffers[name] = kept
        return kept
