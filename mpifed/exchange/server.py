"""Exchange through a server: the client-server setting of FedAvg and FedEM."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Literal

import numpy as np
import torch
from annotated_types import Gt
from torch import Tensor

from mpifed.components.registry import make
from mpifed.errors import RunError
from mpifed.exchange.aggregation import (
    build,
    check_number,
    completed_options,
    inner_products,
)
from mpifed.exchange.base import (
    Exchange,
    Round,
    ServerChannel,
    Transform,
    Updates,
    bits_of,
    timed,
)
from mpifed.exchange.compression import Compressor, message_sizes
from mpifed.exchange.pre_aggregation import NoPreAggregator
from mpifed.exchange.privacy import central_noise
from mpifed.exchange.server_optimizers import Centre, ServerMemory
from mpifed.exchange.transforms import Clip, Sending, sending
from mpifed.federation.federation import Federation
from mpifed.federation.participation import Participation
from mpifed.federation.reduction import (
    SparseRows,
    check_not_diverged,
    sum_and_mass,
    weighted_sum,
)
from mpifed.state import Nothing, on_host
from topologies.parameters import ComponentOf

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
    aggregator : str or mapping
        What takes the place of the mean of updates.
    pre_aggregator : str or mapping
        What makes means of some updates each, which the aggregator gets in place of updates.
    clip : float, optional
        Largest Euclidean norm of an update; the server scales longer ones to it.

    Attributes
    ----------
    sending : Sending
        How clients send their updates to be averaged, after ``transforms``.
    receiving, steps : list of Transform
        What the server does to each update that arrives, and to what it has made of all.
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
        aggregator: Annotated[Any, ComponentOf("aggregator")] = "mean",
        pre_aggregator: Annotated[Any, ComponentOf("pre_aggregator")] = "none",
        clip: Annotated[float, Gt(0)] | None = None,
    ) -> None:
        super().__init__(federation, seed, stored, compressor)
        self.average_over = average_over
        self.aggregator = build(aggregator)
        before = make("pre_aggregator", pre_aggregator, "exchange.pre_aggregator")
        self.pre_aggregator = None if isinstance(before, NoPreAggregator) else before
        self.sending = sending(compressor)
        self.receiving: list[Transform] = [] if clip is None else [Clip(clip)]
        self.steps: list[Transform] = []

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the options; those of aggregation only where they ask for something."""
        return completed_options(options)

    @staticmethod
    def validate(options: dict[str, Any], n_training: int, participation: Participation) -> None:
        """Check that there are enough updates for an aggregator to choose from."""
        check_number(options, n_training, participation)

    def at(self, round: int, active: np.ndarray, memory: Any = None) -> ServerRound:
        return ServerRound(self, Round(self.federation, self.seed, round, active), memory)

    def remember(self, shared: list[Tensor], n_hosted: int, dtype: torch.dtype) -> Any:
        memory = ServerMemory(Nothing(), Nothing(), Nothing())
        if not shared:
            return memory
        numbers = sum(tensor.numel() for tensor in shared)
        rows = shared[0].new_zeros((), dtype=dtype).expand(n_hosted, numbers)
        transforms = [
            (self.sending, rows),
            *((step, shared[0].new_zeros(numbers)) for step in self.steps),
        ]
        states = {each.memory: each.init(like) for each, like in transforms if each.memory}
        if self.aggregator is not None and self.aggregator.centred:
            states["centre"] = Centre(shared[0].new_zeros(numbers, dtype=torch.float64))
        return replace(memory, **states)

    @property
    def adds_noise(self) -> bool:
        """Whether it adds noise to the sum of updates."""
        return self.privacy is not None and self.privacy.where == "central"

    @property
    def averages(self) -> bool:
        """Whether it takes the mean of what arrives, and nothing else."""
        return self.aggregator is None and not self.receiving and not self.adds_noise

    def spread(self, shared: Tensor) -> Tensor:
        return shared

    def mean(self, shared: Tensor, by_samples: bool = False) -> Tensor:
        return shared


class ServerRound(ServerChannel):
    """A server and its clients in one round."""

    exchange: Server

    def broadcast(self, shared: Tensor) -> Tensor:
        self.exchange.ledger.down_bits += self.round.count * bits_of(shared.shape, shared.dtype)
        return shared.expand(len(self.round.ids), *shared.shape)

    @timed
    def average(
        self, rows: Tensor, weights: Tensor, before: Tensor, total_weight: float = 1.0
    ) -> Tensor:
        self.check_update(rows, weights, before)
        if not self.round.count:
            return before
        self._count_update()
        server = self.exchange
        updates = self.through([*server.transforms, server.sending], Updates(rows, before))
        if server.steps:
            mean = self._mean(updates.differences, weights, total_weight)
            return before + self.along(mean.to(before))
        if not server.averages:
            mean = self._mean(updates.differences, weights, total_weight)
            return (before.double() + mean).to(before)
        total, divisor, absent = self._total_and_shares(updates.values, weights, total_weight)
        share_of_before = absent if updates.origin is before else 1.0
        total /= divisor
        if share_of_before:
            total += before * share_of_before
        return total

    @timed
    def mean(self, rows: Tensor, weights: Tensor, total_weight: float = 1.0) -> Tensor:
        self.check_rows(rows, weights)
        return self._mean(rows, weights, total_weight)

    def along(self, mean: Tensor) -> Tensor:
        return self.through(self.exchange.steps, Updates(mean)).values

    def _mean(self, rows: Tensor, weights: Tensor, total_weight: float) -> Tensor:
        """What the server makes of updates that were sent, float64."""
        server, round = self.exchange, self.round
        if server.adds_noise:
            assert server.privacy is not None
            return central_noise(rows, self._sum, server.privacy, round)
        if server.aggregator is None:
            updates = self.through(server.receiving, Updates(rows))
            total, divisor, _ = self._total_and_shares(updates.values, weights, total_weight)
            return total.double() / divisor
        # What is not finite is refused with the client's number, before anything is made of it.
        check_not_diverged(server.federation.communicator, [rows], round.ids, "update")
        aggregate = self.outcome(rows)
        if server.aggregator.centred:
            part = self.next_part(aggregate.numel())
            last = self.memory.centre.last.clone()
            last[part] = aggregate.flatten()
            self.memory = replace(self.memory, centre=Centre(last))
        return aggregate

    def outcome(self, updates: Tensor) -> Tensor:
        server, round, members = self.exchange, self.round, None
        aggregator, before, came = server.aggregator, server.pre_aggregator, round.count
        updates = self.through(server.receiving, Updates(updates)).values
        if aggregator is None:
            return self._sum(updates, torch.full((len(updates),), 1 / came).double())
        if before is not None:
            came, members = before.count(came), before.members(updates, round)
        if aggregator.needs_fixed_number and came < aggregator.least(came):
            raise RunError(
                f"exchange.aggregator needs at least {aggregator.least(came)} updates, but "
                f"{came} came"
            )
        if not aggregator.centred:
            return aggregator.aggregate(updates, round, self._sum, members)
        begin, shape = self._used, updates.shape[1:]
        centre = self.memory.centre.last[begin : begin + math.prod(shape)].view(shape)
        away = updates - centre.to(updates)
        return centre + aggregator.aggregate(away, round, self._sum, members)

    @timed
    def send(self, rows: Tensor, uncompressed: bool = False) -> Tensor:
        self.check_rows(rows)
        self._count_update()
        transforms = [*self.exchange.transforms, Sending(self.compressor)]
        return self.through([Sending()] if uncompressed else transforms, Updates(rows)).values

    def coordinates(self, size: int) -> np.ndarray | None:
        if self.compressor is None:
            return None
        return self.compressor.coordinates(size, self.round.draws, self.round.ids, self._purpose)

    @timed
    def send_chosen(self, rows: SparseRows) -> SparseRows:
        self._check_not_private("sends chosen coordinates")
        assert self.compressor is not None
        self.book(rows.size, rows.dtype, self.compressor)
        values = self.transformed(rows.values)
        return SparseRows(rows.columns, values, rows.size).scaled(self.compressor.scale(rows.size))

    @timed
    def sum(self, rows: Tensor | SparseRows, weights: Tensor) -> Tensor:
        self._check_not_private("adds messages with weights of its own")
        if not self.exchange.averages:
            raise RunError(
                "the algorithm adds its messages itself (ServerChannel.sum), for which neither "
                "exchange.aggregator nor exchange.clip can stand; its class should say "
                "aggregates = 'sums'"
            )
        if isinstance(rows, Tensor):
            self.check_rows(rows, weights)
        return self._sum(rows, weights)

    def scatter(self, rows: Tensor) -> Tensor:
        self.check_rows(rows)
        self.exchange.ledger.down_bits += self.round.count * bits_of(rows.shape[1:], rows.dtype)
        return rows

    @timed
    def gather(self, values: Tensor) -> np.ndarray:
        self._check_not_private("collects numbers of single clients")
        self.check_rows(values, shape=())
        federation, present = self.exchange.federation, self.round.ids_by_rank
        hosted, counts = np.ascontiguousarray(on_host(values)), [len(ids) for ids in present]
        gathered = federation.communicator.gather_rows(hosted[:, None], counts)
        every = np.zeros(federation.n_clients, gathered.dtype)
        every[np.concatenate(present)] = gathered[:, 0]
        return every

    @timed
    def products(self, rows: Tensor) -> Tensor:
        self._check_not_private("takes products of updates")
        self.check_rows(rows)
        return torch.from_numpy(inner_products(rows, self.round)).to(rows.device)

    def among(self, chosen: np.ndarray) -> ServerRound:
        self._check_not_private("takes means within groups of clients")
        return self.exchange.at(self.round.number, self.round.active & chosen)

    def at_server(self, make: Callable[[], list[Tensor]]) -> list[Tensor]:
        communicator = self.exchange.federation.communicator
        tensors = make() if communicator.rank == 0 else []
        count = communicator.broadcast_object(len(tensors))
        sent: list[np.ndarray | None] = [None] * count
        sent[: len(tensors)] = [on_host(tensor) for tensor in tensors]
        return [torch.from_numpy(communicator.broadcast(values)) for values in sent]

    def book(self, size: int, dtype: torch.dtype, compressor: Compressor | None) -> str:
        """Count and book the next message of each participant; return its random stream.

        ``size`` is the numbers of a message before compression.
        """
        ledger, count, purpose = self.exchange.ledger, self.round.count, self._purpose
        self._messages += 1
        if compressor is None:
            ledger.up_bits += count * bits_of(torch.Size([size]), dtype)
            ledger.up_floats += count * size
            return purpose
        everyone, draws = np.flatnonzero(self.round.active), self.round.draws
        bits, floats = message_sizes(compressor, size, dtype.itemsize, draws, everyone, purpose)
        ledger.up_bits += int(bits.sum())
        ledger.up_floats += int(floats.sum())
        return purpose

    def _total_and_shares(
        self, rows: Tensor, weights: Tensor, total_weight: float
    ) -> tuple[Tensor, float, float]:
        """The weighted sum, what divides it, and the share of absent clients in the mean."""
        if self.exchange.privacy is not None:  # clients count alike
            n = len(self.exchange.federation.training)
            weights, total_weight = torch.full_like(weights, 1 / n), 1.0
        federation, w = self.exchange.federation, on_host(weights.double())
        total, mass = sum_and_mass(federation, rows, w, self.round.ids)
        return total, *self._shares(mass, total_weight)

    def _shares(self, mass: float, total_weight: float) -> tuple[float, float]:
        """Divisor of a sum over participants of that mass, and the share of absent clients."""
        federation = self.exchange.federation
        everyone = bool(self.round.active[federation.training].all())
        if federation.is_unbiased and not (everyone and federation.inclusion == 1):
            divisor, what = total_weight * federation.inclusion, "participation.weights=unbiased"
        elif self.exchange.average_over == "all" and not everyone:
            divisor, what = total_weight, "exchange.average_over=all"
        else:
            return mass, 0.0
        if mass > total_weight * (1 + ROUNDING):
            raise RunError(
                f"the weights of {self.round.count} participants sum to {mass:.6g}, those of all "
                f"training clients to {total_weight:g}, as the algorithm says; with {what} "
                "average and mean take shares (clients.weights, clients.equal_weights), or the sum "
                "over all as total_weight"
            )
        return divisor, 1.0 - mass / divisor

    def _sum(self, rows: Tensor | SparseRows, weights: Tensor) -> Tensor:
        federation, w = self.exchange.federation, on_host(weights.double())
        return weighted_sum(federation, rows, w, self.round.ids).double()

    def _count_update(self) -> None:
        if self._messages:
            self._check_not_private("sends several messages in a round")


class Silent(Server):
    """The exchange of an algorithm that sends nothing, whatever exchange is configured."""

    def arcs(self, round: int, active: np.ndarray, itemsize: int) -> list[np.ndarray]:
        return [np.zeros((0, 2), np.int64)]
