"""What a user's own data set describes and loads is checked where it comes from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import torch

from mpifed.components.schema import shown
from mpifed.data.base import Dataset, Description, Shards, Split, SplitName, Task
from mpifed.data.delivery import bad_row
from mpifed.errors import InputError
from topologies.places import defined_at

DESCRIBED = "Description(source, input_shape, n_classes, n_train, n_val, n_test, task)"
LOADED = "load(client_ids, dtype) returns Shards(client_ids, train, val, test)"
MADE = "make_split(name, client_ids, dtype) returns Split(x, y, offsets)"


class Checked(Dataset):
    """A data set whose samples are compared with its description."""

    def __init__(self, dataset: Dataset) -> None:
        self._dataset, self._said = dataset, f"data set '{type(dataset).__name__}'"
        about: Any = getattr(dataset, "description", None)
        for wrong in _wrong_in_description(about):
            call = f"__init__ sets self.description = {DESCRIBED}"
            raise InputError(f"{self._said}: {wrong}; {call}{self._where('__init__')}")
        self.description, self.seed = about, dataset.seed
        self.divisor, self.is_uint8 = dataset.divisor, dataset.is_uint8
        self.fresh = dataset.fresh
        self.make_split = None if dataset.make_split is None else self._made

    def _made(self, name: SplitName, client_ids: np.ndarray, dtype: torch.dtype) -> Split:
        assert self._dataset.make_split is not None
        made = self._dataset.make_split(name, client_ids, dtype)
        self._check(name, made, client_ids, dtype, f"make_split returned for '{name}'", MADE)
        return made

    def load(self, client_ids: np.ndarray, dtype: torch.dtype) -> Shards:
        """Return the shards of ``client_ids``. Collective where the data set's own is."""
        made: Any = self._dataset.load(client_ids, dtype)
        if not isinstance(made, Shards):
            said = f"load returned {_kind(made)}; {LOADED}"
            raise InputError(f"{self._said}: {said}{self._where('load')}")
        if not np.array_equal(made.client_ids, client_ids):
            raise InputError(
                f"{self._said}: load returned shards of the clients {shown(made.client_ids)}; they "
                f"must be those that it was asked for, in their order{self._where('load')}"
            )
        for name in get_args(SplitName):
            said = f"load returned as {name}"
            self._check(name, getattr(made, name), client_ids, dtype, said, LOADED)
        return made

    def _check(
        self, name: SplitName, split: Any, ids: np.ndarray, dtype: torch.dtype, said: str, call: str
    ) -> None:
        counts = getattr(self.description, f"n_{name}")[ids]
        for wrong in _wrong_in_split(split, self.description, ids, counts, dtype):
            where = self._where(said.partition(" ")[0])
            raise InputError(f"{self._said}: {said} {wrong} ({call}){where}")

    def _where(self, method: str) -> str:
        """Return where the user's method is, as the end of a sentence."""
        place = defined_at(type(self._dataset))
        return f" (in {place})" if place else ""

    def remarks(self) -> list[str]:
        """Return the remarks of the data set."""
        made: Any = self._dataset.remarks()
        if not isinstance(made, (list, tuple)) or not all(isinstance(line, str) for line in made):
            raise InputError(
                f"{self._said}: remarks() returned {shown(made)}; it must return a list of strings"
                f"{self._where('remarks')}"
            )
        return list(made)


def _wrong_in_description(about: Any) -> Iterator[str]:
    """Yield what is wrong with a description, each as a clause."""
    if not isinstance(about, Description):
        yield f"its description is {_kind(about)}"
        return
    shape = about.input_shape
    if not isinstance(shape, tuple) or not all(_is_count(size) for size in shape):
        yield f"its input_shape is {shown(shape)}; it must be a tuple of whole numbers"
    if about.task not in get_args(Task):
        yield f"its task is {shown(about.task)}; allowed: {', '.join(get_args(Task))}"
    if not _is_count(about.n_classes):
        yield f"its n_classes is {shown(about.n_classes)}; it must be a whole number, at least 0"
    shapes = set()
    for name in ("n_train", "n_val", "n_test"):
        counts: Any = getattr(about, name)
        is_array = isinstance(counts, np.ndarray) and counts.ndim == 1
        if not is_array or counts.dtype.kind not in "iu" or (counts < 0).any():
            yield (
                f"its {name} is {shown(counts)}; it must be an integer array with the samples of "
                "each client"
            )
            return
        shapes.add(counts.shape)
    if len(shapes) > 1:
        yield "its n_train, n_val and n_test are of different numbers of clients"


def _wrong_in_split(
    split: Any, about: Description, ids: np.ndarray, counts: np.ndarray, dtype: torch.dtype
) -> Iterator[str]:
    """Yield what is wrong with a split of the clients ``ids``, each as a clause."""
    if not isinstance(split, Split):
        yield f"{_kind(split)}; it must be a Split"
        return
    total, target = int(counts.sum()), about.target_type(dtype)
    forms = {
        "x": (dtype, (total, *about.input_shape)),
        "y": (target, (total, *about.target_shape)),
    }
    for name, (wanted, shape) in forms.items():
        given: Any = getattr(split, name)
        if not isinstance(given, torch.Tensor):
            yield f"a Split whose {name} is {_kind(given)}; it must be a tensor"
            return
        fits = given.dtype == wanted or (
            name == "y" and wanted.is_floating_point and given.dtype.is_floating_point
        )
        if not fits or tuple(given.shape) != shape:
            yield (
                f"a Split whose {name} is {_form(given.dtype, given.shape)}; the description asks "
                f"for {_form(wanted, shape)}"
            )
            return
    offsets = np.concatenate([[0], np.cumsum(counts)])
    if not isinstance(split.offsets, np.ndarray) or not np.array_equal(split.offsets, offsets):
        yield (
            "a Split whose offsets do not begin each client's samples as the description counts "
            f"them; they must be an integer array of shape ({len(counts) + 1},), from 0 to {total}"
        )
        return
    found = bad_row(split.x, split.y, about) if total and dtype.is_floating_point else None
    if found is not None:
        client = ids[int(np.searchsorted(offsets, found[0], side="right")) - 1]
        yield f"{found[1].rstrip(',')} in the samples of client {client}"


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, np.integer)) and type(value) is not bool and int(value) >= 0


def _form(dtype: torch.dtype, shape: Any) -> str:
    return f"{str(dtype).removeprefix('torch.')} of shape {tuple(shape)}"


def _kind(made: Any) -> str:
    return "None" if made is None else f"a {type(made).__name__}"
