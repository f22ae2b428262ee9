"""The tensors of a state in the form that a checkpoint stores, and a copy of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from mpifed import state as states
from mpifed.state import host_memory, on_host


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Part:
    """One tensor of a state, in the host's memory."""

    name: str
    values: np.ndarray
    is_rows: bool
    release: Callable[[], None] = _nothing

    @property
    def row_bytes(self) -> int:
        """Bytes of one client's row, or of the whole tensor where it is the server's."""
        shape = self.values.shape[1:] if self.is_rows else self.values.shape
        return int(np.prod(shape, dtype=np.int64)) * self.values.itemsize


def parts(
    state: Any, shared_is_rows: bool, release: Callable[[], None] | None = None
) -> list[Part]:
    """Return the tensors of a state as NumPy arrays, without a copy where they are on the CPU."""
    return [
        Part(name, on_host(tensor), is_rows, release or _nothing)
        for name, tensor, is_rows in states.tensors(state, shared_is_rows)
    ]


class Staging:
    """Memory for one copy of a state."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def copy(self, state: Any, shared_is_rows: bool, server: bool) -> list[Part]:
        """Copy the tensors of a state."""
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
            kept = host_memory(tensor)
            self._buffers[name] = kept
        return kept
