"""Exchange by gossip: x_t <- sum_s W^k[t, s] x_s (Marfoq et al. 2021, Alg. 4, line 15)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
import scipy.sparse
import torch
from annotated_types import Ge, Gt, Le
from torch import Tensor

import topologies
from mpifed.components.registry import named
from mpifed.errors import InputError
from mpifed.exchange import choco
from mpifed.exchange.asynchrony import AsynchronousChannel, Timetable, first_values
from mpifed.exchange.base import Channel, Exchange, Round, bits_of, timed
from mpifed.exchange.choco import contracted, gossip_step
from mpifed.exchange.compression import Compressor, message_sizes, proven_contraction
from mpifed.exchange.corrections import Correction, CorrectionMemory, Neighbours
from mpifed.exchange.corrections.base import (
    BEARABLE,
    PLAYED,
    HeldOutRisks,
    Observations,
    fitted,
    growth,
    mixed_by,
)
from mpifed.exchange.corrections.collaboration import collapse
from mpifed.exchange.mixing_options import (
    completed_options,
    computed_in_rounds,
    prepare_arrays,
    restore,
)
from mpifed.exchange.mixing_product import shared_weights
from mpifed.exchange.reduction import check_not_diverged, weighted_sum
from mpifed.exchange.routes import Nearby, Route, Routing, arrivals, nearby
from mpifed.federation.clients import Federation, participants
from mpifed.mpi.communicator import Communicator
from mpifed.mpi.reused import Reused
from mpifed.state import Nothing, check_result, client, on_host
from topologies.analysis.consensus import messages_received, sampled_rounds
from topologies.parameters import ComponentOf
from topologies.schedules.sequences import Around, Partial, identity

# Nodes up to which such an estimate is made; it holds matrices of nodes x nodes.
MOST_NODES = 1000

# Numbers of the rows that are compared with their mean at a time.
WIDTH = 1 << 16

# Versions of a client's value that may be kept.
MOST_VERSIONS = 100

# Steps of gossip in a round.
MOST_STEPS = 1000


@dataclass(frozen=True)
class Replicas:
    """The replicas of the clients' values that their neighbours hold (CHOCO-Gossip)."""

    replica: Tensor = client()


class GossipChannel(Channel):
    """The neighbours of one round."""

    exchange: Gossip
    _duals_at = -1  # where the duals of the next value lie in the memory
    held_out: HeldOutRisks | None = None
    layers: Sequence[slice] = ()

    def broadcast(self, shared: Tensor) -> Tensor:
        return shared

    def duals(self, shared: Tensor) -> Tensor | None:
        correction = self.exchange.correction
        if correction is None or not correction.within_steps:
            return None
        part = slice(self._used, self._used + math.prod(shared.shape[1:]))
        self._duals_at = self._used
        return self.memory.corrections[:, part].view(shared.shape)

    @timed
    def average(
        self, rows: Tensor, weights: Tensor, before: Tensor, total_weight: float = 1.0
    ) -> Tensor:
        self.check_update(rows, weights, before)
        if self.exchange.privacy is not None:
            if self._messages:
                self._check_not_private("sends several messages in a round")
            self._messages += 1
        rows = self.transformed(rows, before)
        if self.exchange.correction is not None:
            return self._corrected(rows, before, self.exchange.correction)
        if self.compressor is not None:
            return self._compressed(rows)
        return self._mixed_often(rows)

    def _mixed_often(self, rows: Tensor) -> Tensor:
        """The rows after all steps of gossip of the round.

        With Chebyshev weights x_j = w_j W x_{j-1} + (1 - w_j) x_{j-2}, where w_1 = 1,
        w_2 = 2 / (2 - s^2) and w_j = 4 / (4 - s^2 w_{j-1}) for the SLEM s of W (Golub and Varga
        1961): after k steps the distance from the mean is at most 1 / T_k(1 / s) of what it was,
        not s^k.
        """
        exchange, routing, size = self.exchange, self.exchange.routing, math.prod(rows.shape[1:])
        before, now, weight = rows, rows, 1.0
        for step in range(exchange.gossip_steps):
            self._book_uncompressed(rows, size, routing, step)
            mixed = self._mixed(now, routing, step)
            if step and exchange.slem is not None:
                weight = 1 / (1 - exchange.slem**2 * weight / (2 if step == 1 else 4))
                mixed = (mixed * weight).add_(before * (1 - weight))
            before, now = now, mixed
        return now

    def _route(self, routing: Routing, step: int = 0) -> Route:
        number = (self.round.number - 1) * self.exchange.gossip_steps + step + 1
        return routing.route(number, self.round.active)

    def _book(self, bits: int, floats: int) -> None:
        """What goes up an edge comes down it."""
        ledger = self.exchange.ledger
        ledger.up_bits += bits
        ledger.down_bits += bits
        ledger.up_floats += floats

    def _book_uncompressed(
        self, rows: Tensor, numbers: int, routing: Routing, step: int = 0
    ) -> None:
        """Messages of ``numbers`` numbers of the type of ``rows``."""
        messages = self._route(routing, step).messages
        self._book(messages * bits_of(torch.Size([numbers]), rows.dtype), messages * numbers)

    def _corrected(self, rows: Tensor, before: Tensor, correction: Correction) -> Tensor:
        """The correction sees the update that the method has made."""
        routing, size = self.exchange.routing, math.prod(rows.shape[1:])
        route, part = self._route(routing), self._next_part(correction.width(size))
        if correction.within_steps and self._duals_at != part.start:
            raise TypeError("a method that declares takes_duals asked its channel for none")
        if not (correction.compresses or correction.chooses):
            self._book_uncompressed(rows, correction.numbers(size), routing)

        def mix_in_cliques(rows: Tensor) -> Tensor:
            assert routing.cliques is not None
            self._book_uncompressed(rows, rows.shape[1], routing.cliques)
            return self._mixed_apart(rows, routing.cliques)

        neighbours = Neighbours(
            partial(self._mixed_apart, routing=routing),
            mix_in_cliques,
            route.sparse,
            route.mine,
            partial(nearby, self.exchange.federation.communicator, route),
            partial(self._sent, route),
            self.exchange.choco_step(size) if correction.compresses else 1.0,
            self._observations() if correction.chooses else None,
        )
        x, memory = before.flatten(1), self.memory.corrections
        after, remembered = correction.step(x, rows.flatten(1), memory[:, part], neighbours)
        check_result(after, x, correction, "step")
        check_result(remembered, memory[:, part], correction, "step")
        if remembered.shape != memory.shape:
            memory = memory.clone()
            memory[:, part] = remembered
            remembered = memory
        self.memory = CorrectionMemory(remembered)
        return after.view(rows.shape)

    def _sent(self, route: Route, rows: Tensor) -> Tensor:
        """What neighbours receive of the rows."""
        size, training, draws = rows.shape[1], self.exchange.federation.training, self.round.draws
        purpose = self._purpose
        self._messages += 1
        if self.compressor is None:
            self._book_uncompressed(rows, size, self.exchange.routing)
            return rows
        bits, floats = message_sizes(
            self.compressor, size, rows.element_size(), draws, training, purpose
        )
        self._book(int(bits @ route.receivers), int(floats @ route.receivers))
        return contracted(self.compressor, rows, draws, training[route.mine], purpose)

    def _observations(self) -> Observations:
        federation, layers = self.exchange.federation, self.layers
        samples = federation.n_train[federation.training]
        return Observations(
            self.receive, self.held_out, layers, self.round.draws, self.round.ids, samples
        )

    @timed
    def receive(self, rows: Tensor, requests: np.ndarray, numbers: int | None = None) -> Nearby:
        """Return who receives from whom where each participant hosted here asks for others' rows.

        ``rows`` are (participants, numbers), ``requests`` is bool (participants, training clients).
        Every row that one is sent is booked, or ``numbers`` of it, if it reads no others.
        Collective.
        """
        exchange, route = self.exchange, self._route(self.exchange.routing)
        communicator, n = exchange.federation.communicator, route.matrix.n
        receivers, senders = np.nonzero(requests & route.active)
        hosted_arcs = np.stack([route.mine[receivers], senders], axis=1)
        # Every rank learns who asks whom: of its own rows it knows then where they are wanted.
        arcs = communicator.broadcast_object(communicator.gather_object(hosted_arcs))
        edges = np.concatenate(arcs)
        edges = edges[edges[:, 0] != edges[:, 1]]
        weights = 1 / (1 + np.bincount(edges[:, 0], minlength=n)[edges[:, 0]])
        matrix = topologies.MixingMatrix(n, edges, weights, symmetric=False)
        exchange.received.append(matrix.edges)
        size = torch.Size([len(edges), rows.shape[1] if numbers is None else numbers])
        self._book(bits_of(size, rows.dtype), math.prod(size))
        return nearby(communicator, Route(exchange.federation, matrix, route.active))

    def may_receive(self) -> np.ndarray:
        """Return whose edges of W lead to each participant, bool (participants, nodes)."""
        route = self._route(self.exchange.routing)
        neighbours = route.sparse[route.mine].toarray() != 0
        neighbours[np.arange(len(neighbours)), route.mine] = False
        return neighbours

    def alike(self, labels: Tensor, others: np.ndarray) -> np.ndarray:
        """Return which of ``others`` say the same of themselves, which is booked. Collective.

        ``labels`` are (participants, 1).
        """
        arcs = self.receive(labels, others)
        values, alike = arcs.all_rows(labels)[:, 0], np.zeros_like(others)
        same = values[arcs.receivers] == values[arcs.senders]
        alike[arcs.receivers[same], arcs.nodes[arcs.senders[same]]] = True
        return alike

    def mean_received(self, rows: Tensor, others: np.ndarray) -> Tensor:
        """Return the plain mean of each participant's row and those of ``others``. Collective.

        ``rows`` are (participants, numbers), ``others`` is as in ``receive``.
        """
        arcs = self.receive(rows, others)
        every = arcs.all_rows(rows)
        means = every[: len(rows)].copy()
        for receiver, sender in zip(arcs.receivers, arcs.senders, strict=True):
            means[receiver] += every[sender]
        means /= 1 + np.bincount(arcs.receivers, minlength=len(rows))[:, None]
        return torch.from_numpy(means).to(rows)

    def _compressed(self, rows: Tensor) -> Tensor:
        """CHOCO-Gossip: what travels is the compressed distance from the neighbours' replica."""
        exchange, size = self.exchange, math.prod(rows.shape[1:])
        route, part = self._route(exchange.routing), self._next_part(size)
        replicas, flat = self.memory.replica, rows.flatten(1)
        mix = partial(self._mixed, routing=exchange.routing)
        sent = self._sent(route, flat - replicas[:, part])
        mixed, moved = gossip_step(flat, replicas[:, part], sent, mix, exchange.choco_step(size))
        replicas = replicas.clone()
        replicas[:, part] = moved
        self.memory = Replicas(replicas)
        return mixed.view(rows.shape)

    def _mixed_apart(self, rows: Tensor, routing: Routing) -> Tensor:
        """The rows of W X in memory of their own, also where nobody sends."""
        mixed = self._mixed(rows, routing)
        return mixed.clone() if mixed is rows else mixed

    def _memory_like(self, rows: Tensor) -> Tensor:
        if rows.device.type != "cpu":
            return torch.empty_like(rows)
        dtype = on_host(rows[:0]).dtype
        return torch.from_numpy(self.exchange.reused.empty(tuple(rows.shape), dtype))

    def _mixed(self, rows: Tensor, routing: Routing, step: int = 0) -> Tensor:
        """The rows of W X, equal for any ranks."""
        route, federation = self._route(routing, step), self.exchange.federation
        if not route.messages:
            return rows
        communicator, ids = federation.communicator, federation.training[route.mine]
        flat = rows.detach().flatten(1)
        check_not_diverged(communicator, [flat], ids, "update")
        mixed = self._memory_like(flat)
        for columns, arrived in arrivals(communicator, route.transfer, flat):
            route.product(flat[:, columns], arrived, mixed[:, columns])
        for shared, nodes in route.summed:
            weights, self_weight = shared_weights(shared, on_host(flat[:, :0]).dtype)
            total = weighted_sum(federation, flat, weights[route.mine], ids)
            for row in np.flatnonzero(np.isin(route.mine, nodes)).tolist():
                torch.mul(flat[row], self_weight, out=mixed[row]).add_(total)
        return mixed.view(rows.shape)


def to_neighbours(channel: Channel) -> GossipChannel:
    """Return ``channel`` as one to neighbours, for algorithms that gossip alone.

    Raises
    ------
    TypeError
        If it leads to none, which ``Algorithm.exchanges`` should have ruled out.
    """
    if not isinstance(channel, GossipChannel):
        raise TypeError(f"{type(channel).__name__} leads to no neighbours")
    return channel


def gossip_lines(route: Route, period: int | None, payload: int, values_kept: int) -> list[str]:
    """Return lines on a round of gossip."""
    matrix, moved = route.matrix, route.rows_moved
    lines = [
        f"exchange    gossip; {matrix.n} nodes, {len(matrix.edges)} edges at first, "
        f"{'no period' if period is None else f'period {period}'}, W {matrix.sha256[:12]}"
    ]
    if values_kept:
        return [
            *lines,
            f"            clients do not wait; {values_kept} values of each are kept, "
            f"{values_kept * matrix.n * payload:,} bytes in all",
        ]
    return [
        *lines,
        f"            over its edges the federation sends {route.messages * payload:,} bytes",
        f"            MPI moves {moved * payload:,} bytes a round: {moved} rows",
    ]


# Blocks of tau rounds that the rate of a schedule without a closed form is estimated from.
FEWEST_SAMPLES, MOST_SAMPLES = 20, 200


@dataclass(frozen=True)
class Attended(Partial):
    """The matrices of a schedule among those who take part."""

    taking_part: Callable[[int], np.ndarray]

    def matrix(self, k: int) -> topologies.MixingMatrix:
        """Return W^k of the schedule ``inner``, restricted to the participants of round k."""
        return self.inner.matrix(k).restricted_to(self.taking_part(k))


@dataclass(frozen=True)
class Chosen(Around):
    """``inner`` in some of the first ``horizon`` rounds and in all later ones, of ``steps`` each.

    The matrices of the rounds that communicate follow each other as those of ``inner`` do.
    """

    rounds: list[int]
    horizon: int
    steps: int = 1
    period = None

    def matrix(self, k: int) -> topologies.MixingMatrix:
        """Return W^k; k counts the steps of all rounds."""
        earlier, step = divmod(k - 1, self.steps)
        round = earlier + 1
        turn = bisect_right(self.rounds, round) + max(0, round - self.horizon)
        if round <= self.horizon and (not turn or self.rounds[turn - 1] != round):
            return identity(self.n)
        return self.inner.matrix((turn - 1) * self.steps + step + 1)


def communicating(when: When, budget: int | None, horizon: int) -> list[int]:
    """Return the rounds of the first ``horizon`` in which clients send, ascending.

    Examples
    --------
    >>> communicating("late", 3, 100), communicating("geometric", 4, 100)
    ([98, 99, 100], [1, 79, 96, 100])
    """
    if not isinstance(when, str):
        return sorted(set(when))
    count = min(horizon, budget or max(1, horizon // 10))
    if when == "late":
        return [*range(horizon - count + 1, horizon + 1)]
    left, rounds = 0, []
    for j in range(count):
        # As far from the end as geometric growth says, with room for those before it.
        far = round(horizon ** (j / max(1, count - 1)))
        left = min(max(left + 1, far), horizon - count + 1 + j)
        rounds.append(horizon + 1 - left)
    return rounds[::-1]


def predict(
    schedule: topologies.Schedule, taking_part: Callable[[int], np.ndarray] | None, rounds: int
) -> dict[str, float | int] | None:
    """Return the consensus rate (p, tau) of a schedule as plain numbers."""
    if taking_part is not None:
        schedule = Attended(schedule, taking_part)
    if schedule.period is None and schedule.n > MOST_NODES:
        return None
    samples = min(max(rounds // schedule.tau, FEWEST_SAMPLES), MOST_SAMPLES)
    try:
        rate = topologies.consensus_rate(schedule, samples)
    except topologies.TopologyError:
        return None
    return {
        "p": rate.p,
        "tau": rate.tau,
        "per_round": max(0.0, 1 - rate.p) ** (1 / rate.tau),
        "standard_error": rate.standard_error,
    }


When = Literal["every", "late", "geometric"] | list[Annotated[int, Ge(1)]]


class Gossip(Exchange):
    """Clients average with their neighbours by mixing matrices (D-FedEM and its kin).

    Parameters
    ----------
    topology : str or mapping, optional
        The graph, whose nodes are the training clients in their order. None is an Erdos-Renyi graph
        with p = 0.5, where the schedule uses one.
    weights : str or mapping, optional
        Rule for the weights of the edges. None is ``fmmc``, where the schedule uses one.
    schedule : str or mapping
        How the mixing matrix changes from round to round.
    consensus_step : float or 'paper', optional
        Step size of CHOCO-Gossip and of the replicas of ``beer`` and ``motef``, where messages are
        compressed. None is the best that is proven
        (``choco.optimal_step``), 'paper' that of the paper's theorem.
    correction : str or mapping
        What clients send and keep so that unlike data do not bias the result.
    asynchrony : {'none', 'wait_free', 'pairwise'}
        Whether clients wait for each other: in rounds that all have in common; not at all, mixing
        the latest values that have arrived (SWIFT); or averaging with one neighbour at a time
        (AD-PSGD). When is what the sections ``network`` and ``compute`` say.
    kept_versions : int, optional
        Values of each client that are kept for its neighbours under 'wait_free': a client sends
        nothing new while all but one of them are on their way. None is as many as the delays of
        first computations need, at least 2.
    when : {'every', 'late', 'geometric'} or list of int
        The rounds that communicate: every one; the last ``budget``; ``budget`` of them, at
        distances from the end that grow geometrically; or those of a list. Clients train alone in
        the others. Rounds that a resume adds communicate.
    budget : int, optional
        How many rounds communicate under 'late' and 'geometric'. None is a tenth of them.
    gossip_steps : int
        How often clients average with their neighbours in a round.
    chebyshev : bool
        Whether these steps have Chebyshev weights, for a static symmetric W.
    """

    shared_is_rows = True
    slem: float | None = None

    def __init__(
        self,
        federation: Federation,
        seed: int,
        stored: Mapping[str, np.ndarray],
        compressor: Compressor | None = None,
        *,
        topology: Annotated[Any, ComponentOf("topology")] = None,
        weights: Annotated[Any, ComponentOf("weights")] = None,
        schedule: Annotated[Any, ComponentOf("schedule")] = "static",
        consensus_step: Annotated[float, Gt(0), Le(1)] | Literal["paper"] | None = None,
        correction: Annotated[Any, ComponentOf("correction")] = "none",
        asynchrony: Literal["none", "wait_free", "pairwise"] = "none",
        kept_versions: Annotated[int, Ge(2), Le(MOST_VERSIONS)] | None = None,
        when: When = "every",
        budget: Annotated[int, Ge(1)] | None = None,
        gossip_steps: Annotated[int, Ge(1), Le(MOST_STEPS)] = 1,
        chebyshev: bool = False,
    ) -> None:
        super().__init__(federation, seed, stored, compressor)
        self.asynchrony = asynchrony
        self.kept_versions = kept_versions
        self.values_kept = {"none": 0, "wait_free": kept_versions or 2, "pairwise": 1}[asynchrony]
        self.timetable: Timetable | None = None
        # Receivers and senders of a round's messages, in turn, where clients choose them.
        self.received: list[np.ndarray] = []
        self.consensus_step = consensus_step
        self._arrays = dict(stored)
        if compressor is not None and "choco" not in self._arrays:
            self._arrays["choco"] = self._constants(seed, schedule)
        if budget is not None and when not in ("late", "geometric"):
            raise InputError("exchange.budget is given, but exchange.when is not late or geometric")
        self.when, self.budget, self.gossip_steps = when, budget, gossip_steps
        self.reused, self._drawn = Reused(2), computed_in_rounds(schedule)
        self._correction = correction
        self._by_size = weights is not None and named(weights, "exchange.weights")[0] == "by_size"
        schedule = restore(len(federation.training), seed, schedule, stored)
        if chebyshev:
            if gossip_steps == 1:
                raise InputError("exchange.chebyshev is true, but exchange.gossip_steps is 1")
            if "slem" not in self._arrays:
                self._arrays["slem"] = self._slem(schedule)
            self.slem = float(self._arrays["slem"])
        self._mix_by(schedule)

    def _mix_by(self, schedule: topologies.Schedule) -> None:
        self.schedule = schedule
        self.correction = fitted(self._correction, schedule, self.federation)
        mixing, cliques = mixed_by(self.correction, schedule)
        self.routing = Routing(self.federation, mixing, self._drawn, cliques)

    def spread_over(self, horizon: int) -> None:
        """Choose the rounds that communicate among the first ``horizon``. Collective."""
        if self.when != "every":
            rounds = communicating(self.when, self.budget, horizon)
            chosen = Chosen(self.schedule, rounds, horizon, self.gossip_steps)
            self._mix_by(chosen)

    @staticmethod
    def complete_options(options: dict[str, Any], n_training: int) -> dict[str, Any]:
        """Return the options with every parameter spelled out; see ``completed_options``."""
        return completed_options(options, n_training)

    @staticmethod
    def prepare(
        communicator: Communicator, n_training: int, seed: int, options: Mapping[str, Any]
    ) -> dict[str, np.ndarray]:
        """Return what the schedule is made from: computed on rank 0, the same bytes everywhere."""
        arrays: Any = None
        if communicator.rank == 0:
            try:
                arrays = prepare_arrays(n_training, seed, options)
            except topologies.TopologyError as error:
                arrays = f"exchange: {error}"
        names = communicator.broadcast_object(
            sorted(arrays) if isinstance(arrays, dict) else arrays
        )
        if isinstance(names, str):
            raise InputError(names)
        return {name: communicator.broadcast(arrays[name] if arrays else None) for name in names}

    @staticmethod
    def links(
        n_training: int, seed: int, options: Mapping[str, Any], stored: Mapping[str, np.ndarray]
    ) -> scipy.sparse.csr_array:
        """Return who mixes with whom, and how often: for placing clients on ranks."""
        schedule = restore(n_training, seed, options["schedule"], stored)
        total = scipy.sparse.csr_array((n_training, n_training))
        for k in range(1, 1 + min(schedule.period or 8, 32)):
            total = total + (schedule.matrix(k).to_sparse() != 0)
        return scipy.sparse.csr_array(total + total.T)

    def _constants(self, seed: int, schedule: Any) -> np.ndarray:
        """``gap`` and ``spread`` of the static W, found on rank 0. Collective."""
        constants = None
        if self.federation.communicator.rank == 0:
            n = len(self.federation.training)
            matrix = restore(n, seed, schedule, self._arrays).matrix(1)
            constants = choco.constants(matrix.to_dense())
        return self.federation.communicator.broadcast(constants)

    def _slem(self, schedule: topologies.Schedule) -> np.ndarray:
        """The SLEM of the static W, found on rank 0. Collective."""
        slem: Any = None
        if self.federation.communicator.rank == 0:
            matrix = schedule.matrix(1)
            slem = topologies.slem(matrix) if matrix.symmetric else "its matrix is not symmetric"
        slem = self.federation.communicator.broadcast_object(slem)
        if isinstance(slem, str):
            raise InputError(f"exchange.chebyshev is true, but {slem}")
        return np.array(slem)

    def _bounds(self, size: int) -> tuple[float, float, float]:
        """``gap``, ``spread`` and ``delta`` for messages of ``size`` numbers."""
        assert self.compressor is not None
        gap, spread = self._arrays["choco"]
        # Without an edge, or a gap, no step reaches a consensus; a small one does no harm.
        return max(float(gap), 1e-12), float(spread), self.compressor.contraction(size)

    def choco_step(self, size: int) -> float:
        """Return gamma for messages of ``size`` numbers; 1 if they are whole, unless configured."""
        if self.consensus_step not in (None, "paper"):
            return float(self.consensus_step)
        if self.compressor is None:
            return 1.0
        proven_contraction(self.compressor, size)
        step = choco.optimal_step if self.consensus_step is None else choco.theoretical_step
        return step(*self._bounds(size))

    def remarks(self, size: int, rounds: int) -> list[str]:
        """Return the forecast of CHOCO-Gossip for messages of ``size`` numbers, if compressed.

        A warning where the correction diverges by itself. Collective.
        """
        if self.correction is not None and self.compressor is None:
            return self._warning(self.correction)
        keeps_mean = self.schedule.doubly_stochastic or self._by_size
        if not keeps_mean and not self.values_kept:
            return [
                "warning: columns of the mixing matrices do not sum to one, so that gossip moves "
                "the mean of all clients; exchange.correction=push_sum keeps it"
            ]
        if self.compressor is None:
            return []
        words: dict[Any, str] = {None: "the best proven", "paper": "that of the paper's theorem"}
        where_from = words.get(self.consensus_step, "as configured")
        return choco.forecast(self.choco_step(size), where_from, self._bounds(size), rounds)

    def _warning(self, correction: Correction) -> list[str]:
        schedule, grown = self.routing.schedule, 0.0
        is_linear = correction.needs in ("doubly_stochastic", "symmetric")
        if not is_linear or schedule.period == 1 or self._drawn or schedule.n > MOST_NODES:
            return []
        if self.federation.communicator.rank == 0 and self.routing.cliques is None:
            grown = growth(correction, schedule)
        grown = self.federation.communicator.broadcast_object(grown)
        if grown <= BEARABLE:
            return []
        return [
            f"warning: by itself this correction enlarges differences between clients {grown:.0e} "
            f"times in at most {PLAYED} rounds of this schedule, so that training may diverge; "
            "allowed: tracking, or another schedule"
        ]

    def keep_versions(self, reach: np.ndarray, seconds: np.ndarray) -> None:
        """Choose how many versions are kept for messages that travel ``reach`` seconds.

        A computation of a client takes ``seconds``; both float64 (nodes,).
        """
        if self.kept_versions is None:
            with np.errstate(divide="ignore", invalid="ignore"):
                delay = np.nan_to_num(np.ceil(reach / seconds)).max(initial=0.0)
            self.values_kept = int(np.clip(delay + 1, 2, MOST_VERSIONS))

    def latest(self, shared: list[Tensor], memory: Any) -> list[Tensor]:
        if self.asynchrony != "pairwise":
            return shared
        sizes = [math.prod(tensor.shape[1:]) for tensor in shared]
        parts = memory.kept[:, 0].split(sizes, dim=1)
        return [part.view_as(tensor) for part, tensor in zip(parts, shared, strict=True)]

    def participants(self, round: int, present: np.ndarray) -> np.ndarray:
        training = self.federation.training
        if self.timetable is not None:
            nodes = self.timetable.begin(round, present[training]).nodes
        elif hasattr(self.schedule, "taking_part"):
            nodes = self.schedule.taking_part(round)
        else:
            return present
        chosen = np.zeros(len(present), bool)
        chosen[training[nodes]] = True
        return chosen & present

    def at(self, round: int, active: np.ndarray, memory: Any = None) -> Channel:
        self.received = []
        now = Round(self.federation, self.seed, round, active)
        if self.timetable is None:
            return GossipChannel(self, now, memory)
        combine = partial(self.timetable.next_combination, partial(self.routing.weights, round))
        return AsynchronousChannel(self, now, memory, combine)

    def remember(self, shared: list[Tensor], n_hosted: int, dtype: torch.dtype) -> Any:
        sizes = [math.prod(tensor.shape[1:]) for tensor in shared]
        if self.values_kept:
            empty = self.values_kept if self.asynchrony == "wait_free" else None
            return first_values(shared, empty)
        if self.correction is not None:
            widths = sum(map(self.correction.width, sizes))
            return CorrectionMemory(shared[0].new_zeros(n_hosted, widths))
        if self.compressor is None:
            return Nothing()
        return Replicas(shared[0].new_zeros(n_hosted, sum(sizes), dtype=dtype))

    def spread(self, shared: Tensor) -> Tensor:
        return shared.repeat(len(self.federation.hosted), *([1] * shared.dim()))

    def mean(self, shared: Tensor, by_samples: bool = False) -> Tensor:
        federation = self.federation
        ids, rows = self._training_rows(shared)
        mass, weights = len(federation.training), np.ones(len(ids))
        if by_samples:
            weights, mass = federation.n_train[ids].astype(float), federation.n_train_total
        # Divided after the sum: weights are whole numbers until then.
        return weighted_sum(federation, rows, weights, ids) / mass

    def consensus_distance(self, shared: list[Tensor]) -> float | None:
        ids = self._training_rows(shared[0])[0]
        squares = np.zeros(len(ids))
        for part in (part for tensor in shared for part in tensor.flatten(1).split(WIDTH, dim=1)):
            mean = self.mean(part.double())
            rows = self._training_rows(part)[1]
            squares += [float((row.double() - mean).square().sum()) for row in rows]
        parts = self.federation.communicator.gather_object((ids, squares))
        if parts is None:
            return None
        every = np.zeros(self.federation.n_clients)
        for owned, values in parts:
            every[owned] = values
        return float(every.sum() / len(self.federation.training))

    def predicted_contraction(self, rounds: int) -> dict[str, float | int] | None:
        """Return how ``rounds`` rounds of averaging alone would contract;
        ``contraction.predict``.
        """
        if self.compressor is not None or self.correction is not None or self.values_kept:
            return None
        if self.when != "every" or self.gossip_steps > 1:
            return None
        return self._rate(rounds)

    def graph(self, rounds: int, rate: Mapping[str, float] | None) -> dict[str, float | int] | None:
        received = map(messages_received, sampled_rounds(self.schedule))
        degree = max(int(counts.max()) for counts in received)
        rate = rate or self._rate(rounds)
        if rate is None:
            return {"degree": degree}
        gap = 1 - math.sqrt(rate["per_round"])
        return {"p": rate["p"], "spectral_gap": gap, "degree": degree}

    def _rate(self, rounds: int) -> dict[str, float | int] | None:
        federation, seed = self.federation, self.seed
        taking_part = None
        if federation.participation != 1.0:

            def taking_part(k: int) -> np.ndarray:
                active = participants(federation, federation.participation, seed, k)
                return active[federation.training]

        return predict(self.schedule, taking_part, rounds)

    def _training_rows(self, shared: Tensor) -> tuple[np.ndarray, Tensor]:
        hosted = self.federation.hosted
        training = ~self.federation.unseen[hosted]
        if training.all():
            return hosted, shared
        return hosted[training], shared[torch.from_numpy(np.flatnonzero(training))]

    def collapse(self, memory: Any) -> dict[str, float | None]:
        """Return how evenly clients were chosen, on rank 0; ``collaboration.collapse``. Collective.

        ``memory`` is that of all clients hosted here; {} where clients do not choose.
        """
        if self.correction is None or not self.correction.chooses:
            return {}
        rows = on_host(self._training_rows(memory.corrections)[1])
        parts = self.federation.communicator.gather_object(rows[:, -2 * self.schedule.n :])
        if parts is None:
            return {}
        owner = self.federation.owner[self.federation.training]
        order = np.argsort(np.argsort(owner, kind="stable"))
        last, often = np.split(np.concatenate(parts)[order], 2, axis=1)
        return collapse(last, often)

    def arcs(self, round: int, active: np.ndarray, itemsize: int) -> list[np.ndarray]:
        if self.received:
            return self.received
        first = (round - 1) * self.gossip_steps + 1
        return [self.routing.arcs(first + step, active) for step in range(self.gossip_steps)]

    def arrays(self) -> dict[str, np.ndarray]:
        return self._arrays

    def describe(self, payload: int, itemsize: int) -> list[str]:
        first, lines = 1, []
        if isinstance(self.schedule, Chosen):
            rounds, horizon = self.schedule.rounds, self.schedule.horizon
            first = rounds[0]
            lines = [
                f"            {len(rounds)} of {horizon} rounds communicate, from round {first} on"
            ]
        if self.correction is not None and self.correction.chooses:
            lines += ["            if all ask whom they may; clients choose whom they ask"]
        if self.gossip_steps > 1:
            lines += [f"            {self.gossip_steps} times in a round"]
        route = self.routing.route((first - 1) * self.gossip_steps + 1, ~self.federation.unseen)
        if self.correction is not None:
            payload = self.correction.numbers(payload // itemsize) * itemsize
        return [*gossip_lines(route, self.schedule.period, payload, self.values_kept), *lines]
