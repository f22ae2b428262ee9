"""How a server's sums go over ranks: over all at once, or node by node through shared memory."""

from __future__ import annotations

import logging
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mpifed.errors import RunError
from mpifed.mpi.communicator import Communicator
from mpifed.mpi.sums import FlatSums, Sums
from mpifed.watchdog.shared_memory import PLACE, room

# Numbers from which a sum goes node by node; the steps of a smaller one cost more than they save.
LARGE = 1 << 12

# The same where there is a single node, between whose ranks MPI is as fast up to there.
LARGE_ON_ONE_NODE = 1 << 18

# Arrays of a message's size that a node holds at a time: sums, and models before and after.
ARRAYS = 4


class Grouping:
    """The way of the sums of a run."""

    def __init__(self, communicator: Communicator, asked: str) -> None:
        self._communicator, self._asked = communicator, asked
        self._flat = FlatSums(communicator.begin_total)
        self._has_room: dict[int, bool] = {}

    @cached_property
    def _nodes(self) -> np.ndarray:
        return self._communicator.nodes()

    @cached_property
    def _ranks(self) -> np.ndarray:
        """Ranks of each node."""
        return np.bincount(self._nodes)

    @cached_property
    def _by_node(self) -> Sums:
        return self._communicator.node_sums(self._nodes)

    def goes_by_node(self, size: int) -> bool:
        """Whether a sum of ``size`` numbers goes node by node. Collective when first asked for."""
        if self._asked == "flat" or self._communicator.size == 1 or size < LARGE:
            return False
        if self._asked == "hierarchical":
            return True
        return int(self._ranks.max()) > 1 and (len(self._ranks) > 1 or size >= LARGE_ON_ONE_NODE)

    def is_shared(self, size: int) -> bool:
        """Whether a node holds a sum of ``size`` numbers once. Collective when first asked for."""
        return self.sums(size) is not self._flat

    def sums(self, size: int) -> Sums:
        """Return how messages of ``size`` numbers are added. Collective when first asked for."""
        if not self.goes_by_node(size):
            return self._flat
        if size not in self._has_room:
            self._has_room[size] = self._fits(size, self._by_node)
        return self._by_node if self._has_room[size] else self._flat

    def average(self, total: np.ndarray, divisor: float, kept: float, before: Tensor) -> Tensor:
        """Return total / divisor + kept before in the type of ``before``. Collective."""
        sums = self.sums(total.size)
        kind = np.float64 if before.dtype == torch.float64 else np.float32
        made = torch.from_numpy(sums.array(before.shape, kind))
        part = sums.share(total.size)
        share = torch.from_numpy(total.reshape(-1)[part]).div_(divisor)
        if kept:
            share += before.reshape(-1)[part].to("cpu", torch.float64, copy=True).mul_(kept)
        made.view(-1)[part] = share
        sums.filled()
        return made.to(before.device)

    def describe(self, size: int) -> str:
        """Return how messages of ``size`` numbers are added, in words. Collective."""
        if not self.goes_by_node(size):
            return "an Allreduce of int64"
        if len(self._ranks) == 1:
            return "ranks add in shared memory"
        return (
            f"an Allreduce of int64 between {len(self._ranks)} nodes; ranks of a node add in "
            "shared memory"
        )

    def participants(self, size: int) -> int:
        """How many ranks hand a sum of ``size`` numbers to MPI. Collective when first asked for."""
        nodes = len(self._ranks) if self.goes_by_node(size) else self._communicator.size
        return nodes if nodes > 1 else 0

    def _fits(self, size: int, sums: Sums) -> bool:
        scratch = 2 * min(size, sums.columns) * (int(self._ranks.max()) + 1)
        needed = 8 * (scratch + ARRAYS * size)
        least = int(-self._communicator.max(np.array([-float(room())]))[0])
        if least >= needed:
            return True
        what = (
            f"node by node a sum of {size} numbers needs {needed} bytes of shared memory, and a "
            f"node has {least} in {PLACE}"
        )
        if self._asked == "hierarchical":
            raise RunError(f"exchange.reduction is 'hierarchical': {what}; allowed here: flat")
        if self._communicator.rank == 0 and len(self._ranks) > 1:
            logging.getLogger("mpifed").warning("%s: ranks add all at once", what)
        return False
