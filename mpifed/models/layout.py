"""Where the parameters and buffers of a torch module are in a flat row of numbers."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from mpifed.errors import InputError, closest


@dataclass(frozen=True)
class Place:
    """The place of one tensor.

    Attributes
    ----------
    name : str
        Name in the module's state dict.
    shape : tuple of int
        Shape of the tensor.
    begin : int
        Its first number in the row.
    channels_last : bool
        Whether the numbers of a kernel (outputs, inputs, height, width) are in the order outputs,
        height, width, inputs.
    dtype : torch.dtype
        Type of the module's own tensor; counters are integers there and floating-point in a row.
    """

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
class Layout:
    """The places of a module's trained parameters, then of the buffers that training changes.

    Attributes
    ----------
    parameters, buffers : tuple of Place
        In the order of the row.
    """

    parameters: tuple[Place, ...]
    buffers: tuple[Place, ...]

    @property
    def places(self) -> tuple[Place, ...]:
        """The places of all tensors, in the order of the row."""
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
        return any(place.channels_last for place in self.parameters)

    def formatted(self, x: Tensor) -> Tensor:
        """Return images in the order of the kernels; layers would reorder them otherwise."""
        if self.channels_last and x.dim() == 4:
            return x.contiguous(memory_format=torch.channels_last)
        return x

    def views(self, row: Tensor) -> dict[str, Tensor]:
        """Return all tensors by name, as views of ``row``, (size,)."""
        return {place.name: place.view(row) for place in (*self.parameters, *self.buffers)}

    def row(self, module: nn.Module) -> np.ndarray:
        """Return the numbers of a module with this layout, float64 (size,)."""
        row = torch.empty(self.size, dtype=torch.float64)
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        for name, view in self.views(row).items():
            view.copy_(own[name].detach())
        return row.numpy()


def mask_of(places: Iterable[Place], size: int, names: Iterable[str], field: str) -> Tensor:
    """Return which numbers of a row belong to some layers or tensors.

    Parameters
    ----------
    places : iterable of Place
        All tensors of the row.
    size : int
        Numbers in the row.
    names : iterable of str
        Names of tensors, of layers, or patterns of such names with ``*``.
    field : str
        Where the names come from; the beginning of messages.

    Returns
    -------
    Tensor
        bool (size,).

    Raises
    ------
    InputError
        For a name that nothing has, with the closest one.

    Examples
    --------
    >>> layout = layout_of(nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1)))
    >>> mask_of(layout.parameters, layout.size, ["1"], "head")
    tensor([False, False, False,  True,  True])
    """
    mask, found = torch.zeros(size, dtype=torch.bool), list(places)
    for name in names:
        chosen = [place for place in found if any(fnmatchcase(n, name) for n in _names(place))]
        if not chosen:
            known = {n for place in found for n in _names(place)}
            raise InputError(
                f"{field} has '{name}', which is no layer or parameter of the model; "
                f"{closest(name, known)}"
            )
        for place in chosen:
            mask[place.begin : place.end] = True
    return mask


def _names(place: Place) -> list[str]:
    """The tensor's name and those of all layers that it is in."""
    parts = place.name.split(".")
    return [".".join(parts[:k]) for k in range(1, len(parts) + 1)]


def places_of(shapes: Iterable[tuple[str, tuple[int, ...]]]) -> tuple[Place, ...]:
    """Return the places of tensors that follow one another in a row.

    Parameters
    ----------
    shapes : iterable of (str, tuple of int)
        Name and shape of each tensor.

    Examples
    --------
    >>> [place.begin for place in places_of([("weight", (2, 3)), ("bias", (2,))])]
    [0, 6]
    """
    begin, found = 0, []
    for name, shape in shapes:
        found.append(Place(name, shape, begin, False, torch.float64))
        begin = found[-1].end
    return tuple(found)


def layout_of(module: nn.Module, changing: Collection[str] = ()) -> Layout:
    """Return the layout of a module.

    Parameters
    ----------
    module : torch.nn.Module
        Its parameters with ``requires_grad`` are trained.
    changing : collection of str
        Names of the buffers that training changes.

    Examples
    --------
    >>> module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    >>> layout = layout_of(module, ["1.running_mean"])
    >>> layout.trained, layout.size, [place.name for place in layout.buffers]
    (24, 26, ['1.running_mean'])
    """
    kernels = {
        f"{name}.weight" if name else "weight"
        for name, part in module.named_modules()
        if isinstance(part, nn.Conv2d)
    }
    begin, parameters, buffers = 0, [], []
    for name, tensor in module.named_parameters():
        if tensor.requires_grad:
            last = name in kernels
            parameters.append(Place(name, tuple(tensor.shape), begin, last, tensor.dtype))
            begin = parameters[-1].end
    for name, buffer in module.named_buffers():
        if name in changing:
            buffers.append(Place(name, tuple(buffer.shape), begin, False, buffer.dtype))
            begin = buffers[-1].end
    return Layout(tuple(parameters), tuple(buffers))
