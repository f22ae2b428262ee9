"""The cached file with what the published generator of the synthetic benchmark makes."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from mpifed.data import published
from mpifed.data.base import Shards, Split
from mpifed.data.cache import cached
from mpifed.data.federated_format import Contents
from mpifed.data.federated_writer import write
from mpifed.data.published import Setting


def cached_release(setting: Setting, contents: Contents) -> Path:
    """Return the cached file with everything the published generator makes for ``setting``.

    It is made if it is missing; ``cached`` says what is raised.
    """

    def make(path: Path) -> None:
        write(path, contents, _released_blocks(setting, contents), dataclasses.asdict(setting))

    arguments = {**dataclasses.asdict(setting), "stored": contents.stored}
    return cached("synthetic-released", arguments, contents, make)


def _released_blocks(setting: Setting, contents: Contents) -> Iterator[Shards]:
    dtype = getattr(torch, contents.stored)
    empty = _split(np.empty((0, setting.dimension)), np.empty(0, np.int64), dtype)
    for client, (train, test) in enumerate(published.samples(setting)):
        shards = (_split(train.x, train.y, dtype), empty, _split(test.x, test.y, dtype))
        yield Shards(np.array([client]), *shards)


def _split(x: np.ndarray, y: np.ndarray, dtype: torch.dtype) -> Split:
    return Split(torch.from_numpy(x).to(dtype), torch.from_numpy(y), np.array([0, len(y)]))
