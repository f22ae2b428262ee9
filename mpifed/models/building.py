"""Torch modules as a user's function builds them: drawn from seeds, complete, in the run's type."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from mpifed.errors import InputError
from mpifed.models.layout import Layout, Place, layout_of
from mpifed.models.trial import BATCH, outputs_of

Made = TypeVar("Made")
# A user's function, with its arguments given.
Build = Callable[[], nn.Module]


def seeded(make: Callable[[], Made], seed: int) -> Made:
    """Return ``make()`` with torch's global generator seeded; its state is restored afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make()


def complete(module: object, input_shape: tuple[int, ...]) -> nn.Module:
    """Return the module with the shapes of its lazy layers found."""
    if not isinstance(module, nn.Module):
        raise InputError(f"model: the function returned {type(module).__name__}, not a module")
    lazy = [tensor for tensor in (*module.parameters(), *module.buffers()) if is_lazy(tensor)]
    if lazy:
        module.eval()
        with torch.no_grad():
            outputs_of(module, torch.ones(BATCH, *input_shape, dtype=lazy[0].dtype))
    return module


@dataclass(frozen=True)
class Builder:
    """Builds modules of one kind after the first."""

    build: Build
    input_shape: tuple[int, ...]
    dtype: torch.dtype
    seed: int
    said: str = "model"
    where: str = ""

    def drawn(self, seed: int) -> nn.Module:
        """Return a module drawn from ``seed``; its warnings were heard with the first module."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fresh = seeded(lambda: complete(self.build(), self.input_shape), seed)
        return fresh.to(self.dtype)

    def refuse_unlike(self, fresh: nn.Module, first: nn.Module, layout: Layout) -> None:
        """Refuse a module that is not trained as another one of the same function."""
        if fresh is first:
            raise self._refusal(
                "the function must build a new module in every call; it returned the same one twice"
            )
        shared = next((p.name for p in layout.places if _same_owner(fresh, first, p.name)), None)
        if shared is not None:
            part = shared.rpartition(".")[0]
            is_layer = part and fresh.get_submodule(part) is first.get_submodule(part)
            kind = type(fresh.get_submodule(part)).__name__
            what = f"layer '{part}' (a {kind})" if is_layer else f"parameter '{shared}'"
            raise self._refusal(
                f"the modules that the function returns share {what}, which was made once; every "
                "model of a run is drawn anew, so make it within the function"
            )
        found = layout_of(fresh, {place.name for place in layout.buffers})
        if found != layout:
            pairs = zip_longest(found.places, layout.places)
            now, before = next((a, b) for a, b in pairs if a != b)
            raise self._refusal(
                "the function builds modules of different shapes: it made "
                f"{_described(before)} in one call and {_described(now)} in another"
            )

    def _refusal(self, what: str) -> InputError:
        return InputError(f"{self.said}: {what}{self.where}")

    @cached_property
    def _unused(self) -> nn.Module:
        return self.drawn(self.seed)

    def copy(self) -> nn.Module:
        """Return a copy of the module of ``seed``, which has never computed anything."""
        kept = (t for part in self._unused.modules() for t in vars(part).values())
        products = (t for t in kept if isinstance(t, Tensor) and not t.is_leaf)
        return copy.deepcopy(self._unused, {id(t): t.detach().clone() for t in products})


def _same_owner(fresh: nn.Module, first: nn.Module, name: str) -> bool:
    """Return whether two modules have one layer, or one parameter, of this name."""
    part, _, tensor = name.rpartition(".")
    try:
        one, other = fresh.get_submodule(part), first.get_submodule(part)
    except AttributeError:
        return False
    own = one._parameters.get(tensor)
    return one is other or (own is not None and own is other._parameters.get(tensor))


def _described(place: Place | None) -> str:
    return "nothing more" if place is None else f"'{place.name}' of shape {place.shape}"
