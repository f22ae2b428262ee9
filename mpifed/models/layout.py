"""Where the parameters and buffers of a torch module are in a flat row of numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from mpifed.errors import InputError, closest


@dataclass(frozen=True)
class Span:
    """Where one tensor is in a row."""

    name: str
    shape: tuple[int, ...]
    begin: int
    channels_last: bool
    dtype: torch.dtype

    @cached_property
    def size(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)

    @property
    def end(self) -> int:
        """The number behind its last one."""
        return self.begin + self.size

    def view(self, row: Tensor) -> Tensor:
        """Return the tensor as a view of ``row``."""
        return self.shaped(row[self.begin : self.end])

    def shaped(self, part: Tensor) -> Tensor:
        """Return the tensor as a view of its part of a row, (size,)."""
        if len(self.shape) == 1:
            return part
        if not self.channels_last:
            return part.view(self.shape)
        outputs, inputs, height, width = self.shape
        return part.view(outputs, height, width, inputs).permute(0, 3, 1, 2)


@dataclass(frozen=True)
class RowLayout:
    """The spans of a module's trained parameters, then of the buffers that training changes."""

    parameters: tuple[Span, ...]
    buffers: tuple[Span, ...]

    @property
    def spans(self) -> tuple[Span, ...]:
        """The spans of all tensors, in the order of the row."""
        return (*self.parameters, *self.buffers)

    @cached_property
    def trained(self) -> int:
        """Numbers of all parameters."""
        return self.parameters[-1].end if self.parameters else 0

    @cached_property
    def size(self) -> int:
        """Numbers in a row."""
        return self.buffers[-1].end if self.buffers else self.trained

    @cached_property
    def channels_last(self) -> bool:
        """Whether any tensor has its channels last."""
        return any(span.channels_last for span in self.parameters)

    def formatted(self, x: Tensor) -> Tensor:
        """Return images in the order of the kernels; layers would reorder them otherwise."""
        if self.channels_last and x.dim() == 4:
            return x.contiguous(memory_format=torch.channels_last)
        return x

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """Return all tensors by name, as views of ``row``, (size,)."""
        return {span.name: span.view(row) for span in (*self.parameters, *self.buffers)}

    def row(self, module: nn.Module) -> np.ndarray:
        """Return the numbers of a module with this layout, float64 (size,)."""
        row = torch.empty(self.size, dtype=torch.float64)
        for view, tensor in self._pairs(row, module):
            view.copy_(tensor.detach())
        return row.numpy()

    def fill(self, module: nn.Module, row: Tensor) -> nn.Module:
        """Give a module with this layout the numbers of ``row``; counters stay integers."""
        for view, tensor in self._pairs(row.detach(), module):
            if isinstance(tensor, nn.Parameter):
                tensor.data = view.clone()  # with channels last where the row has them so
            else:
                tensor.copy_(view)
        return module

    def _pairs(self, row: Tensor, module: nn.Module) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield views of ``row`` with the tensors of a module."""
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, view in self.views(row).items():
            yield view, tensors[name]


def mask_of(spans: Iterable[Span], size: int, names: Iterable[str], field: str) -> Tensor:
    """Return which numbers of a row belong to some layers or tensors."""
    mask, candidates = torch.zeros(size, dtype=torch.bool), list(spans)
    for name in names:
        chosen = [span for span in candidates if any(fnmatchcase(n, name) for n in _names(span))]
        if not chosen:
            allowed = {n for span in candidates for n in _names(span)}
            raise InputError(
                f"{field} has '{name}', which is no layer or parameter of the model; "
                f"{closest(name, allowed)}"
            )
        for span in chosen:
            mask[span.begin : span.end] = True
    return mask


def _names(span: Span) -> list[str]:
    """The tensor's name and those of all layers that it is in."""
    parts = span.name.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts) + 1)]


def spans_of(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[Span, ...]:
    """Return the spans of tensors that follow one another in a row."""
    begin, spans = 0, []
    for name, shape in shapes:
        spans.append(Span(name, shape, begin, False, torch.float64))
        begin = spans[-1].end
    return tuple(spans)


def layout_of(module: nn.Module, changing: Collection[str] = ()) -> RowLayout:
    """Return the layout of a module."""
    kernels = {
        f"{name}.weight" if name else "weight"
        for name, part in module.named_modules()
        if isinstance(part, nn.Conv2d)
    }
    begin, parameters, buffers = 0, [], []
    for name, tensor in module.named_parameters():
        if tensor.requires_grad:
            last = name in kernels
            parameters.append(Span(name, tuple(tensor.shape), begin, last, tensor.dtype))
            begin = parameters[-1].end
    for name, buffer in module.named_buffers():
        if name in changing:
            buffers.append(Span(name, tuple(buffer.shape), begin, False, buffer.dtype))
            begin = buffers[-1].end
    return RowLayout(tuple(parameters), tuple(buffers))


def filled(build: Callable[[], nn.Module], row: Tensor) -> nn.Module:
    """Return a module in evaluation mode with the numbers of a row."""
    with torch.device("meta"):
        module = build()
    module = module.to_empty(device=row.device).to(row.dtype)
    return layout_of(module).fill(module, row).eval()
