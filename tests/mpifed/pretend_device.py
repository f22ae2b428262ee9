"""A device that is not there: its tensors say that they are elsewhere and are computed on the CPU.

What a GPU refuses is refused here too: operations between its tensors and others, indices on the
wrong side, generators of the CPU, and a numpy array that shares the memory of a tensor. The device
has the name ``meta``, which torch knows in every build; none of its tensors is a meta tensor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from mpifed.training import build

DEVICE = torch.device("meta")
aten = torch.ops.aten
COPIES = {aten.copy_.default, aten._to_copy.default, aten._copy_from.default}
"""Operations between devices."""

INDEXING = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
"""Operations whose second argument may be on the CPU."""


class OnDevice(Tensor):
    """A tensor that says that it is on the device; ``held`` has its numbers."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnDevice:
        form = (held.size(), held.stride(), held.storage_offset())
        made = Tensor._make_wrapper_subclass(cls, *form, dtype=held.dtype, device=DEVICE)
        made.held = held
        return made

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, value: Tensor) -> None:
        Tensor.data.__set__(self, value)
        self.held = value.held

    def __repr__(self) -> str:
        return f"OnDevice({self.held})"

    @classmethod
    def __torch_dispatch__(cls, operation, types, args=(), kwargs=None):
        return computed(operation, args, kwargs or {})


class Pretending(TorchDispatchMode):
    """Sends every operation through ``computed``: also one that makes a tensor of nothing."""

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        return computed(operation, args, kwargs or {})


def computed(operation, args, kwargs):
    """Computes on the CPU what ``operation`` would give on the device."""
    found = leaves(args, kwargs)
    check(operation, args, kwargs, found)
    asked = kwargs.get("device")
    there = any(isinstance(one, OnDevice) for one in found)
    if asked is not None:
        there = torch.device(asked).type == DEVICE.type
        kwargs = {**kwargs, "device": torch.device("cpu")}
    elif operation is aten.copy_.default:
        there = isinstance(args[0], OnDevice)
    if kwargs.get("pin_memory"):
        assert not there, "pinned memory is the host's"
        kwargs = {**kwargs, "pin_memory": False}
    plain_kwargs = {name: mapped(plain, value) for name, value in kwargs.items()}
    result = operation(*mapped(plain, args), **plain_kwargs)
    if not there:
        return args[0] if operation is aten.copy_.default else result
    wrapped = mapped(lambda one: OnDevice(one) if isinstance(one, Tensor) else one, result)
    if operation in COPIES and operation is not aten.copy_.default:
        return wrapped
    return return_and_correct_aliasing(operation, args, kwargs, wrapped)


def plain(value):
    return value.held if isinstance(value, OnDevice) else value


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """``value`` with each leaf changed; torch's own trees take most of the time of a test."""
    if isinstance(value, list | tuple):
        done = [mapped(change, one) for one in value]
        return done if isinstance(value, list) else tuple(done)
    return change(value)


def leaves(*values: Any) -> list[Any]:
    """What the arguments of an operation hold in lists, tuples and dictionaries."""
    found = []
    for value in values:
        if isinstance(value, list | tuple | dict):
            found += leaves(*(value.values() if isinstance(value, dict) else value))
        else:
            found.append(value)
    return found


def check(operation, args, kwargs, found):
    """Raises what torch raises where tensors are not on one device."""
    if operation in COPIES:
        return
    if operation in INDEXING and isinstance(args[0], OnDevice):
        found = leaves(args[0], args[2:], kwargs)
    tensors = [one for one in found if isinstance(one, Tensor)]
    there = [one for one in tensors if isinstance(one, OnDevice)]
    here = [one for one in tensors if not isinstance(one, OnDevice) and one.dim()]
    # torch.tensor makes these without a word to modes; they have no numbers.
    assert not any(one.device == DEVICE for one in here), (
        "torch.tensor(..., device=...) is not seen"
    )
    if there and here:
        raise RuntimeError(f"{operation}: tensors on {DEVICE} and on the CPU in one operation")
    drawn = [one for one in found if isinstance(one, torch.Generator)]
    made_there = torch.device(kwargs.get("device") or "cpu").type == DEVICE.type
    if (there or made_there) and any(one.device.type == "cpu" for one in drawn):
        raise RuntimeError(f"{operation}: a generator of the CPU for a tensor on {DEVICE}")


@contextlib.contextmanager
def pretended() -> Iterator[torch.device]:
    """The device, which ``device: cuda`` means in a configuration."""
    tolist = Tensor.tolist
    with (
        mock.patch.object(build, "choose_device", lambda *_: DEVICE),
        mock.patch.object(Tensor, "tolist", lambda tensor: tolist(plain(tensor))),
        Pretending(),
    ):
        yield DEVICE
