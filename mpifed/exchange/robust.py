"""A server that clips the updates it receives, or takes another aggregate than their mean."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mpifed.components.base import checked_result
from mpifed.errors import RunError
from mpifed.exchange.aggregation import Aggregator, ByCoordinates, ByProducts, build
from mpifed.exchange.base import ServerChannel
from mpifed.exchange.forwarding import ServerForwarding
from mpifed.exchange.pairs import by_coordinates
from mpifed.exchange.reduction import common_exponents
from mpifed.federation.clients import Federation
from mpifed.sparse_rows import SparseRows
from mpifed.state import on_host


@dataclass(frozen=True)
class Treatment:
    """What a server does instead of averaging."""

    federation: Federation
    clip: float | None
    aggregator: Aggregator | None

    def traffic(self, payload: int, itemsize: int, summed: int) -> tuple[int, str]:
        """Return the bytes that MPI moves in a round in which all take part, and how, in words."""
        here, n = self.federation.communicator.size, len(self.federation.training)
        if isinstance(self.aggregator, ByCoordinates):
            shares = n * payload * (here - 1) // here
            back = payload // itemsize * 8 * (here - 1)
            return shares + back, "each rank aggregates a share of the coordinates"
        first = self.federation.hosted_of(0)
        elsewhere = n - int((~self.federation.unseen[first]).sum())
        return elsewhere * payload + summed, "rank 0 compares all updates, and ranks add some"


def treatment(federation: Federation, clip: float | None, aggregator: Any) -> Treatment | None:
    """Return the treatment that options of a server ask for; None for a plain mean."""
    made = build(aggregator)
    return None if clip is None and made is None else Treatment(federation, clip, made)


class Aggregating(ServerForwarding):
    """A channel whose server makes one thing of updates, whether a method averages or
    sends them.
    """

    def __init__(self, channel: ServerChannel, federation: Federation, active: np.ndarray) -> None:
        super().__init__(channel)
        self.federation, self.active = federation, active

    @abstractmethod
    def mean(self, rows: Tensor, weights: Tensor, whole: float = 1.0) -> Tensor:
        """Return what the server makes of updates that were sent, float64. Collective."""

    def average(self, rows: Tensor, weights: Tensor, before: Tensor, whole: float = 1.0) -> Tensor:
        if not self.active.any():
            return before
        sent = self.send(rows - before)
        return (before.double() + self.mean(sent, weights, whole)).to(before)

    def sum(self, rows: Tensor | SparseRows, weights: Tensor) -> Tensor:
        raise RunError(
            "the algorithm adds its messages itself (ServerChannel.sum), for which neither "
            "exchange.aggregator, exchange.clip nor privacy can stand; its class should say "
            "aggregates = 'sums'"
        )

    @property
    def participants(self) -> np.ndarray:
        """Those hosted here, int64."""
        hosted = self.federation.hosted
        return hosted[self.active[hosted]]


class Robust(Aggregating):
    """A server that clips and aggregates as its ``Treatment`` says."""

    def __init__(self, channel: ServerChannel, treatment: Treatment, active: np.ndarray) -> None:
        super().__init__(channel, treatment.federation, active)
        self.treatment = treatment

    def among(self, chosen: np.ndarray) -> Robust:
        return Robust(self.server.among(chosen), self.treatment, self.active & chosen)

    def mean(self, rows: Tensor, weights: Tensor, whole: float = 1.0) -> Tensor:
        aggregator, clip = self.treatment.aggregator, self.treatment.clip
        updates = rows if clip is None else clipped(rows, clip)
        if aggregator is None:
            return self.server.mean(updates, weights, whole)
        communicator, count = self.federation.communicator, int(self.active.sum())
        if aggregator.needs_fixed_number and count < aggregator.least(count):
            raise RunError(
                f"exchange.aggregator needs at least {aggregator.least(count)} updates, but "
                f"{count} came"
            )
        # What is not finite is refused with the client's number, before anything is made of it.
        common_exponents(communicator, [updates.flatten(1)], self.participants, "update")
        if isinstance(aggregator, ByCoordinates):
            combine = partial(_combined, aggregator)
            made = by_coordinates(self.federation, self.active, updates, combine)
            return torch.from_numpy(made).to(rows.device)
        assert isinstance(aggregator, ByProducts)
        products = on_host(self.server.products(updates))
        shares = np.zeros(self.federation.n_clients)
        if communicator.rank == 0:
            made = aggregator.shares(products)
            shares[self.active] = checked_result(aggregator, "shares", made, products[0])
        own = communicator.broadcast(shares)[self.participants]
        return self.server.sum(updates, torch.from_numpy(own))


def _combined(aggregator: ByCoordinates, columns: np.ndarray) -> np.ndarray:
    made = aggregator.combine(columns)
    return checked_result(aggregator, "combine", made, columns, columns.shape[1:])


def clipped(rows: Tensor, norm: float) -> Tensor:
    """Return rows (clients, ...), of which those longer than ``norm`` are scaled to it."""
    lengths = norms(rows)
    if not (lengths > norm).any():
        return rows
    # Not by norm / lengths, which is not finite where a length is not: refused when it is summed.
    factors = np.divide(norm, lengths, out=np.ones(len(rows)), where=lengths > norm)
    shape = (-1, *[1] * (rows.dim() - 1))
    return rows * torch.from_numpy(factors).to(rows).view(shape)


def norms(rows: Tensor) -> np.ndarray:
    """Return the Euclidean norm of each row (clients, ...), float64 (clients,)."""
    squares = [np.square(on_host(row).reshape(-1).astype(np.float64)).sum() for row in rows]
    return np.sqrt(np.array(squares, np.float64))
