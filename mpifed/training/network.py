"""How long messages between ranks take: a LogGP model, and a ping-pong that measures its numbers.
A message of k bytes takes L + 2 o + k G (Alexandrov et al. 1997): the latency L, the overhead o of
a processor at both ends, and the time G of a byte. Collective operations are made of messages as
the best known algorithms do (Thakur et al. 2005).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from mpifed.mpi.communicator import Communicator
from mpifed.mpi.played import Operation

# Numbers of the messages of a ping-pong, float64.
SMALL, LARGE = 1, 1 << 19

TURNS = 30


@dataclass(frozen=True)
class Network:
    """The network between ranks."""

    latency: float
    overhead: float
    bandwidth: float

    @property
    def start(self) -> float:
        """Seconds of an empty message."""
        return self.latency + 2 * self.overhead

    def seconds(self, operation: Operation, ranks: int, per_node: int) -> float:
        """Return the wall seconds of an operation of all ranks that begin together."""
        if ranks == 1:
            return 0.0
        if operation.kind == "node sum":
            leaders = -(-ranks // per_node)
            inside = 3 * _steps(per_node) * self.start + 2 * operation.sent / self.bandwidth
            return inside + (self._reduce(operation.sent, leaders) if leaders > 1 else 0.0)
        if operation.kind in ("reduce", "broadcast"):
            return self._reduce(operation.sent, ranks)
        if operation.kind == "gather":
            return _steps(ranks) * self.start + operation.received / self.bandwidth
        moved = max(operation.sent, operation.received)
        return self.latency + 2 * operation.messages * self.overhead + moved / self.bandwidth

    def cpu_seconds(self, operation: Operation, ranks: int) -> float:
        """Return the CPU seconds of one rank, where waiting takes none."""
        if ranks == 1:
            return 0.0
        messages = operation.messages if operation.kind == "neighbours" else _steps(ranks)
        moved = operation.sent + operation.received
        return 2 * messages * self.overhead + moved / self.bandwidth

    def _reduce(self, size: int, ranks: int) -> float:
        """An Allreduce: by recursive doubling, or by a reduce-scatter and an allgather."""
        steps = _steps(ranks)
        doubling = steps * (self.start + size / self.bandwidth)
        scattered = 2 * steps * self.start + 2 * (ranks - 1) / ranks * size / self.bandwidth
        return min(doubling, scattered)


def _steps(ranks: int) -> int:
    return math.ceil(math.log2(ranks)) if ranks > 1 else 0


def wall_seconds(
    network: Network, operations: Iterable[Operation], ranks: int, per_node: int
) -> float:
    """Return the wall seconds of operations that follow each other; see ``Network.seconds``."""
    return sum(network.seconds(operation, ranks, per_node) for operation in operations)


def ping_pong(communicator: Communicator) -> Network:
    """Measure the network between ranks 0 and 1, of at least two; collective."""
    found = None
    if communicator.rank < 2:
        small = _quickest(communicator, SMALL, 1)
        burst = _quickest(communicator, SMALL, 16) / 16
        large = _quickest(communicator, LARGE, 1)
        overhead = min(burst, small / 2) / 2
        bandwidth = 8 * (LARGE - SMALL) / max(large - small, 1e-9)
        found = np.array([max(small - 2 * overhead, 0.0), overhead, bandwidth])
    return Network(*(float(value) for value in communicator.broadcast(found)))


def _quickest(communicator: Communicator, numbers: int, count: int) -> float:
    """Seconds of ``count`` messages one way, half of those there and back."""
    message = np.zeros(numbers)

    def there() -> None:
        for _ in range(count):
            communicator.send(message, 1 - communicator.rank)

    def back() -> None:
        for _ in range(count):
            communicator.receive(message.shape, message.dtype, 1 - communicator.rank)

    order: tuple[Callable[[], None], Callable[[], None]]
    order = (there, back) if communicator.rank == 0 else (back, there)
    found = []
    for _ in range(TURNS):
        began = time.perf_counter()
        order[0]()
        order[1]()
        found.append((time.perf_counter() - began) / 2)
    return min(found)
