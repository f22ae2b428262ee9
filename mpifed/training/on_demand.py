"""Samples that are loaded when they are first needed, and parts of them."""

from __future__ import annotations

from functools import cached_property

import numpy as np
import torch

from mpifed.data.base import Fresh, Shards, Split
from mpifed.memory import enough_memory
from mpifed.training.build import Setup


class OnDemand(Shards):
    """The shards of the clients hosted here, loaded at the first use of a split.

    Parameters
    ----------
    setup : Setup
        The objects of the run.
    """

    def __init__(self, setup: Setup) -> None:
        # The base class is frozen.
        vars(self).update(client_ids=setup.federation.hosted, _setup=setup)

    @cached_property
    def _loaded(self) -> Shards:
        with enough_memory("the samples of all clients"):
            return vars(self)["_setup"].load()

    @property
    def train(self) -> Split:  # type: ignore[override]
        """Training samples."""
        return self._loaded.train

    @property
    def val(self) -> Split:  # type: ignore[override]
        """Validation samples."""
        return self._loaded.val

    @property
    def test(self) -> Split:  # type: ignore[override]
        """Test samples."""
        return self._loaded.test

    @property
    def fresh(self) -> Fresh | None:  # type: ignore[override]
        """Draws new samples where the source can."""
        return vars(self)["_setup"].dataset.fresh


def of_client(shards: Shards, row: int) -> Shards:
    """Return the shards of the ``row``-th of the clients alone."""

    def part(split: Split) -> Split:
        begin, end = (int(place) for place in split.offsets[row : row + 2])
        return Split(split.x[begin:end], split.y[begin:end], np.array([0, end - begin]))

    splits = (part(split) for split in (shards.train, shards.val, shards.test))
    return Shards(shards.client_ids[row : row + 1], *splits, shards.fresh)


def of_nobody(setup: Setup) -> Shards:
    """Return the shards of no client, for which nothing is loaded."""
    about = setup.dataset.description
    x = torch.zeros(0, *about.input_shape, dtype=setup.dtype)
    y = torch.zeros(0, *about.target_shape, dtype=about.target_type(setup.dtype))
    empty = Split(x, y, np.zeros(1, np.int64))
    return Shards(np.zeros(0, np.int64), empty, empty, empty, setup.dataset.fresh)
