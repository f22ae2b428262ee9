"""Samples that are loaded when they are first needed, and parts of them."""

from __future__ import annotations

from functools import cached_property

import torch

from mpifed.data.base import Fresh, Shards, Split
from mpifed.io.memory import enough_memory
from mpifed.training.build import Setup


class OnDemand(Shards):
    """The shards of the clients hosted here, loaded at the first use of a split."""

    _setup: Setup

    def __init__(self, setup: Setup) -> None:
        # The base class is frozen.
        vars(self).update(client_ids=setup.federation.hosted, _setup=setup)

    @cached_property
    def _loaded(self) -> Shards:
        with enough_memory("the samples of all clients"):
            return self._setup.load()

    @property
    def train(self) -> Split:
        """Training samples."""
        return self._loaded.train

    @property
    def val(self) -> Split:
        """Validation samples."""
        return self._loaded.val

    @property
    def test(self) -> Split:
        """Test samples."""
        return self._loaded.test

    @property
    def device(self) -> torch.device:
        """Where the samples will be."""
        return self._setup.device

    @property
    def fresh(self) -> Fresh | None:
        """Draws new samples where the source can."""
        return self._setup.dataset.fresh


def of_client(shards: Shards, row: int) -> Shards:
    """Return the shards of the ``row``-th of the clients alone."""
    train, val, test = (split.of_client(row) for split in (shards.train, shards.val, shards.test))
    return Shards(shards.client_ids[row : row + 1], train, val, test, shards.fresh)
