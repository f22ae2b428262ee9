"""Exchange through a server: the client-server setting of FedAvg and FedEM."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Gt
from torch import Tensor

from mpifed.components.base import checked_result
from mpifed.components.schema import ComponentOf
from mpifed.errors import RunError
from mpifed.exchange.aggregation.aggregators import check_number, completed
from mpifed.exchange.base import Exchange, ServerChannel, bits_of
from mpifed.exchange.compression import Compressor
from mpifed.exchange.compression.base import ErrorFeedback
from mpifed.exchange.compression.sparse import RandK
from mpifed.exchange.grouping import LARGE, Grouping
from mpifed.exchange.pairs import collected, inner_products
from mpifed.exchange.reduction import sum_and_mass, weighted_sum
from mpifed.exchange.robust import Robust, treatment
from mpifed.federation.clients import Draws, Federation
from mpifed.sparse_rows import SparseRows
from mpifed.state import Nothing, on_host

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
    def validate(configuration: Any) -> None:
        """Check that there are enough updates for an aggregator to choose from."""
        check_number(configuration)

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
