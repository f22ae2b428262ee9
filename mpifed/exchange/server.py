"""Exchange through a server: the client-server setting of FedAvg and FedEM.

What a server knows of its clients one by one: numbers, products of pairs, all of a
coordinate.

A server that clips the updates it receives, or takes another aggregate than their mean.

The exchange of algorithms that send nothing.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Gt
from torch import Tensor

from mpifed.components.results import checked_result
from mpifed.components.schema import ComponentOf
from mpifed.errors import RunError
from mpifed.exchange.aggregation import (
    Aggregator,
    ByCoordinates,
    ByProducts,
    build,
    completed,
    refusal,
)
from mpifed.exchange.base import Exchange, ServerChannel, bits_of
from mpifed.exchange.compression import Compressor, ErrorFeedback, RandK
from mpifed.exchange.forwarding import ServerForwarding
from mpifed.exchange.reduction import (
    LARGE,
    Grouping,
    SparseRows,
    common_exponents,
    sum_and_mass,
    weighted_sum,
)
from mpifed.federation.clients import Draws, Federation
from mpifed.federation.participation import is_unbiased
from mpifed.state import Nothing, on_host

# Numbers that a rank holds of other ranks' rows at a time.
AT_ONCE = 1 << 22


def collected(federation: Federation, active: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the numbers of all active clients on every rank, 0 for the others. Collective."""
    present = _present(federation, active)
    counts = [len(clients) for clients in present]
    found = federation.communicator.gather_rows(np.ascontiguousarray(values)[:, None], counts)
    every = np.zeros(federation.n_clients, found.dtype)
    every[np.concatenate(present)] = found[:, 0]
    return every


def inner_products(federation: Federation, active: np.ndarray, rows: Tensor) -> np.ndarray:
    """Return the inner products of all pairs of active clients' rows, in client order.
    Collective.
    """
    communicator, flat = federation.communicator, rows.detach().flatten(1)
    present = _present(federation, active)
    order = torch.from_numpy(np.argsort(np.concatenate(present)))
    everything, nothing = np.arange(len(flat)), np.zeros(0, int)
    send = [everything] + [nothing] * (communicator.size - 1)
    at_root = communicator.rank == 0
    receive = [len(clients) if at_root else 0 for clients in present]
    products = torch.zeros(len(order), len(order), dtype=torch.float64)
    width = max(1, AT_ONCE // max(1, len(order)))
    for start in range(0, flat.shape[1], width):
        own = np.ascontiguousarray(on_host(flat[:, start : start + width]))
        arrived = communicator.exchange_rows(own, send, receive)
        if at_root:
            part = torch.from_numpy(arrived)[order].double()
            products += part @ part.T
    return communicator.broadcast(products.numpy())


def by_coordinates(
    federation: Federation,
    active: np.ndarray,
    rows: Tensor,
    combine: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Return what ``combine`` makes of all active clients' rows, coordinate by coordinate."""
    communicator, flat = federation.communicator, rows.detach().flatten(1)
    size, present = communicator.size, _present(federation, active)
    order = np.argsort(np.concatenate(present))
    # Row c * size + r of what is sent is the share of rank r in the row of client c.
    send = [np.arange(len(flat)) * size + rank for rank in range(size)]
    receive = [len(clients) for clients in present]
    found = np.empty(flat.shape[1])
    at_once = size * max(1, AT_ONCE // (max(1, len(order)) + size * max(1, len(flat))))
    # The widths of all ranks are those of the one with the fewest columns at a time.
    at_once = int(-communicator.max(np.array([-float(at_once)]))[0])
    for start in range(0, flat.shape[1], at_once):
        part = on_host(flat[:, start : start + at_once])
        width = -(-part.shape[1] // size)
        padded = np.zeros((len(part), size * width), part.dtype)
        padded[:, : part.shape[1]] = part
        arrived = communicator.exchange_rows(padded.reshape(-1, width), send, receive)
        share = combine(arrived[order].astype(np.float64))
        shares = communicator.gather_rows(share[None], [1] * size)
        found[start : start + part.shape[1]] = shares.reshape(-1)[: part.shape[1]]
    return found.reshape(rows.shape[1:])


def _present(federation: Federation, active: np.ndarray) -> list[np.ndarray]:
    """The active clients of each rank, ascending."""
    hosted = [federation.hosted_of(rank) for rank in range(federation.communicator.size)]
    return [clients[active[clients]] for clients in hosted]


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


# How far the participants' weights may be above those of all clients, relatively.
ROUNDING = 1e-6


class Server(Exchange):
    """Clients send to a server, which averages (Marfoq et al. 2021, Alg. 1, line 10).

    Parameters
    ----------
    average_over : {'participants', 'all'}
        Whose models are averaged. ``all`` is what the published FedEM code does under partial
        participation: a client that does not take part contributes the shared value the round
        began with.
    reduction : {'auto', 'flat', 'hierarchical'}
        How ranks add: all at once, or node by node, where the ranks of a node add in shared memory
        and hold one copy of the average. ``auto`` takes the latter where a node has several ranks;
        if it is the only one, for sums of 2^18 numbers or more. It changes no number.
    aggregator : str or mapping
        What takes the place of the mean of updates.
    clip : float, optional
        Largest Euclidean norm of an update; the server scales longer ones to it.
    """

    shared_is_rows = False

    def __init__(
        self,
        federation: Federation,
        seed: int,
        stored: Mapping[str, np.ndarray] | None = None,
        compressor: Compressor | None = None,
        *,
        average_over: Literal["participants", "all"] = "participants",
        reduction: Literal["auto", "flat", "hierarchical"] = "auto",
        aggregator: Annotated[Any, ComponentOf("aggregator")] = "mean",
        clip: Annotated[float, Gt(0)] | None = None,
    ) -> None:
        super().__init__(federation, seed, stored, compressor)
        self.average_over = average_over
        self.grouping = Grouping(federation.communicator, reduction)
        self.treatment = treatment(federation, clip, aggregator)

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the options; ``aggregator`` and ``clip`` only where they ask for something."""
        return completed(options)

    @staticmethod
    def refuse(configuration: Any) -> str | None:
        """Return why these options cannot be combined, or None."""
        over = configuration.exchange.options["average_over"]
        if over == "all" and is_unbiased(configuration.participation):
            return (
                "exchange.average_over is 'all' and participation.weights is 'unbiased', which "
                "weigh participants in two ways; allowed: one of them"
            )
        return refusal(configuration)

    def at(self, round: int, active: np.ndarray, memory: Any = None) -> ServerChannel:
        made = ServerRound(self, round, active, memory or Nothing())
        return made if self.treatment is None else Robust(made, self.treatment, active)

    def remember(self, shared: list[Tensor], n_hosted: int, dtype: torch.dtype) -> Any:
        if self.compressor is None or self.compressor.unbiased:
            return Nothing()
        numbers = sum(tensor.numel() for tensor in shared)
        return ErrorFeedback(shared[0].new_zeros(n_hosted, numbers, dtype=dtype))

    def spread(self, shared: Tensor) -> Tensor:
        return shared

    def mean(self, shared: Tensor, by_samples: bool = False) -> Tensor:
        return shared

    def describe(self, payload: int, itemsize: int) -> list[str]:
        # A rank gives one int64 (two for float64) for each number that a client sends.
        size = payload // itemsize
        moved = size * (16 if itemsize == 8 else 8) * self.grouping.participants(size)
        how = self.grouping.describe(size)
        if self.treatment is not None and self.treatment.aggregator is not None:
            moved, how = self.treatment.traffic(payload, itemsize, moved)
        everyone = self.federation.training
        sent = up = payload * len(everyone)
        if self.compressor is not None and payload:
            bits = self.compressor.bits(size, itemsize, Draws(self.seed, 1), everyone)
            up = -(-int(bits.sum()) // 8)
        return [
            f"exchange    server; the federation sends {up:,} bytes up and {sent:,} down a round "
            "in which all take part",
            f"            MPI moves {moved:,} bytes a round, {how}",
        ]


@dataclass
class ServerRound(ServerChannel):
    """A server and its clients in one round."""

    server: Server
    round: int
    active: np.ndarray
    memory: Any = field(default_factory=Nothing)
    # Messages of this round so far.
    _sent: int = 0
    # Numbers of the memory that they have used.
    _place: int = 0

    @property
    def shared_is_rows(self) -> bool:
        return False

    @property
    def compressor(self) -> Compressor | None:
        return self.server.compressor

    @cached_property
    def _hosted(self) -> np.ndarray:
        hosted = self.server.federation.hosted
        return hosted[self.active[hosted]]

    def broadcast(self, shared: Tensor) -> Tensor:
        self.server.ledger.down_bits += int(self.active.sum()) * bits_of(shared.shape, shared.dtype)
        return shared.expand(len(self._hosted), *shared.shape)

    def average(self, rows: Tensor, weights: Tensor, before: Tensor, whole: float = 1.0) -> Tensor:
        if not self.active.any():
            return before
        update = rows if self.compressor is None else self._arrived(rows - before)
        if self.compressor is None:
            self._book(before.shape, before.dtype)
        total, mass = self._total_and_mass(update, weights)
        divisor, absent = self._shares(mass, whole)
        kept = absent if self.compressor is None else 1.0
        return self.server.grouping.average(total, divisor, kept, before)

    def mean(self, rows: Tensor, weights: Tensor, whole: float = 1.0) -> Tensor:
        total, mass = self._total_and_mass(rows, weights)
        return torch.from_numpy(total).to(rows.device) / self._shares(mass, whole)[0]

    def _shares(self, mass: float, whole: float) -> tuple[float, float]:
        """Divisor of a sum over participants of that mass, and the share of absent clients."""
        federation = self.server.federation
        everyone = bool(self.active[federation.training].all())
        if federation.is_unbiased and not (everyone and federation.inclusion == 1):
            divisor, what = whole * federation.inclusion, "participation.weights=unbiased"
        elif self.server.average_over == "all" and not everyone:
            divisor, what = whole, "exchange.average_over=all"
        else:
            return mass, 0.0
        if mass > whole * (1 + ROUNDING):
            raise RunError(
                f"the weights of {int(self.active.sum())} participants sum to {mass:.6g}, those of "
                f"all training clients to {whole:g}, as the algorithm says; with {what} average "
                "and mean take shares (clients.weights, clients.equal_weights), or the sum over "
                "all as whole"
            )
        return divisor, 1.0 - mass / divisor

    def send(self, rows: Tensor, whole: bool = False) -> Tensor:
        if self.compressor is None or whole:
            self._sent += 1
            self._book(rows.shape[1:], rows.dtype)
            return rows
        draws, purpose = self._stream()
        self._book_compressed(math.prod(rows.shape[1:]), rows.dtype)
        flat = rows.flatten(1)
        made = self.compressor(flat, draws, self._hosted, purpose)
        return checked_result(self.compressor, "__call__", made, flat).view(rows.shape)

    def coordinates(self, size: int) -> np.ndarray | None:
        if not isinstance(self.compressor, RandK):
            return None
        draws, purpose = self._stream()
        return self.compressor.coordinates(size, draws, self._hosted, purpose)

    def send_chosen(self, rows: SparseRows) -> SparseRows:
        assert isinstance(self.compressor, RandK)
        self._book_compressed(rows.size, rows.dtype)
        return rows.scaled(self.compressor.scale(rows.size))

    def sum(self, rows: Tensor | SparseRows, weights: Tensor) -> Tensor:
        total = self._total(rows, weights)
        shared = self.server.grouping.is_shared(total.size)
        return torch.from_numpy(total.copy() if shared else total).to(rows.device)

    def _total_and_mass(
        self, rows: Tensor | SparseRows, weights: Tensor
    ) -> tuple[np.ndarray, float]:
        """``_total``, and the sum of the weights, which travel together if they are few numbers."""
        if isinstance(rows, SparseRows) or math.prod(rows.shape[1:]) >= LARGE:
            ones = torch.ones(len(weights), 1, dtype=torch.float64)
            mass = float(self._total(ones, weights)[0])
            return self._total(rows, weights), mass
        federation, w = self.server.federation, weights.double().cpu().numpy()
        many = federation.n_clients
        return sum_and_mass(federation.communicator, rows, w, self._hosted, many)

    def _total(self, rows: Tensor | SparseRows, weights: Tensor) -> np.ndarray:
        """``sum`` as an array that must not be changed: a node may hold it once."""
        federation = self.server.federation
        size = rows.size if isinstance(rows, SparseRows) else math.prod(rows.shape[1:])
        w = weights.double().cpu().numpy()
        return weighted_sum(
            federation.communicator,
            rows,
            w,
            self._hosted,
            federation.n_clients,
            sums=self.server.grouping.sums(size),
        )

    def deliver(self, rows: Tensor) -> Tensor:
        count = int(self.active.sum())
        self.server.ledger.down_bits += count * bits_of(rows.shape[1:], rows.dtype)
        return rows

    def collect(self, values: Tensor) -> np.ndarray:
        return collected(self.server.federation, self.active, on_host(values))

    def products(self, rows: Tensor) -> Tensor:
        found = inner_products(self.server.federation, self.active, rows)
        return torch.from_numpy(found).to(rows.device)

    def among(self, chosen: np.ndarray) -> ServerRound:
        return ServerRound(self.server, self.round, self.active & chosen)

    def at_server(self, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        communicator = self.server.federation.communicator
        made = make() if communicator.rank == 0 else []
        count = communicator.broadcast_object(len(made))
        sent: list[np.ndarray | None] = [None] * count
        sent[: len(made)] = [on_host(tensor) for tensor in made]
        return [torch.from_numpy(communicator.broadcast(values)) for values in sent]

    def _arrived(self, update: Tensor) -> Tensor:
        """What the server receives of an update; a biased compressor's error is sent later. Error
        feedback: what was lost is added to the next round's update (Seide et al. 2014; Stich et
        al. 2018).
        """
        assert self.compressor is not None
        if self.compressor.unbiased:
            return self.send(update)
        size = math.prod(update.shape[1:])
        part = slice(self._place, self._place + size)
        self._place += size
        wanted = update.flatten(1) + self.memory.residual[:, part]
        arrived = self.send(wanted)
        residual = self.memory.residual.clone()
        residual[:, part] = wanted - arrived
        self.memory = ErrorFeedback(residual)
        return arrived.view(update.shape)

    def _stream(self) -> tuple[Draws, str]:
        """What the compressor draws the next message from, and the purpose that it goes by."""
        return Draws(self.server.seed, self.round), f"compression {self._sent}"

    def _book_compressed(self, size: int, dtype: torch.dtype) -> None:
        """Counts and books the next message, of ``size`` numbers before compression."""
        assert self.compressor is not None
        draws, purpose = self._stream()
        self._sent += 1
        everyone, ledger = np.flatnonzero(self.active), self.server.ledger
        bits = self.compressor.bits(size, dtype.itemsize, draws, everyone, purpose)
        floats = self.compressor.floats(size, draws, everyone, purpose)
        ledger.up_bits += int(checked_result(self.compressor, "bits", bits, everyone).sum())
        ledger.up_floats += int(checked_result(self.compressor, "floats", floats, everyone).sum())

    def _book(self, shape: torch.Size, dtype: torch.dtype) -> None:
        count = int(self.active.sum())
        self.server.ledger.up_bits += count * bits_of(shape, dtype)
        self.server.ledger.up_floats += count * math.prod(shape)


class Silent(Server):
    """The exchange of an algorithm that sends nothing, whatever exchange is configured."""

    def arcs(self, round: int, active: np.ndarray, itemsize: int) -> np.ndarray:
        return np.zeros((0, 2), np.int64)

    def describe(self, payload: int, itemsize: int) -> list[str]:
        return ["exchange    none: the algorithm sends nothing, whatever the section exchange says"]
