"""What a run says of its exchange: what a round moves, and how fast gossip should contract."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import topologies
from mpifed.exchange import choco
from mpifed.exchange.aggregation import bytes_to_rank_0
from mpifed.exchange.base import Exchange
from mpifed.exchange.correction import BEARABLE, PLAYED, Correction, growth
from mpifed.exchange.gossip import Gossip
from mpifed.exchange.gossip_rounds import Chosen
from mpifed.exchange.routes import Route
from mpifed.exchange.server import Server, Silent
from mpifed.federation.clients import Draws
from mpifed.federation.federation import participants
from mpifed.federation.reduction import bytes_of_sum
from topologies.analysis.consensus import messages_received, sampled_rounds
from topologies.schedules.sequences import Partial

# Nodes up to which a rate is estimated; it takes matrices of nodes x nodes.
MOST_NODES = 1000

# Blocks of tau rounds that the rate of a schedule without a closed form is estimated from.
FEWEST_SAMPLES, MOST_SAMPLES = 20, 200


def describe(exchange: Exchange, payload: int, itemsize: int) -> list[str]:
    """Return lines for ``--dry-run``: what a round moves. Collective.

    A client sends ``payload`` bytes, in numbers of ``itemsize`` bytes.
    """
    if isinstance(exchange, Silent):
        return ["exchange    none: the algorithm sends nothing, whatever the section exchange says"]
    if isinstance(exchange, Server):
        return _server_lines(exchange, payload, itemsize)
    return _gossip_lines(exchange, payload, itemsize) if isinstance(exchange, Gossip) else []


def remarks(exchange: Exchange, size: int, rounds: int) -> list[str]:
    """Return lines for the log on messages of ``size`` numbers in so many ``rounds``. Collective.

    Under gossip, the forecast of CHOCO-Gossip where they are compressed, and warnings.
    """
    if not isinstance(exchange, Gossip):
        return []
    if exchange.correction is not None and exchange.compressor is None:
        return _divergence(exchange, exchange.correction)
    keeps_mean = exchange.schedule.doubly_stochastic or exchange.by_size
    if not keeps_mean and not exchange.values_kept:
        return [
            "warning: columns of the mixing matrices do not sum to one, so that gossip moves "
            "the mean of all clients; exchange.correction=push_sum keeps it"
        ]
    if exchange.compressor is None:
        return []
    words: dict[Any, str] = {None: "the best proven", "paper": "that of the paper's theorem"}
    origin = words.get(exchange.consensus_step, "as configured")
    bounds = exchange.choco_bounds(size)
    return choco.forecast(exchange.choco_step(size), origin, bounds, rounds)


def predicted_contraction(exchange: Exchange, rounds: int) -> dict[str, float | int] | None:
    """Return how ``rounds`` rounds of averaging alone would contract; None where unknown.

    See ``predict``. Not collective.
    """
    if not isinstance(exchange, Gossip):
        return None
    if exchange.compressor is not None or exchange.correction is not None or exchange.values_kept:
        return None
    if exchange.when != "every" or exchange.gossip_steps > 1:
        return None
    return _rate(exchange, rounds)


def graph(
    exchange: Exchange, rounds: int, rate: Mapping[str, float] | None
) -> dict[str, float | int] | None:
    """Return p, the spectral gap (of a round) and the degree of W, as far as they are known.

    ``rate`` is what ``predicted_contraction`` returned. The degree is the most messages that a
    client receives in a round. None where nothing is mixed. Not collective.
    """
    if not isinstance(exchange, Gossip):
        return None
    received = map(messages_received, sampled_rounds(exchange.schedule))
    degree = max(int(counts.max()) for counts in received)
    rate = rate or _rate(exchange, rounds)
    if rate is None:
        return {"degree": degree}
    gap = 1 - math.sqrt(rate["per_round"])
    return {"p": rate["p"], "spectral_gap": gap, "degree": degree}


@dataclass(frozen=True)
class Attended(Partial):
    """The matrices of a schedule among those who take part."""

    taking_part: Callable[[int], np.ndarray]

    def matrix(self, k: int) -> topologies.MixingMatrix:
        """Return W^k of the schedule ``inner``, restricted to the participants of round k."""
        return self.inner.matrix(k).restricted_to(self.taking_part(k))


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


def _rate(exchange: Gossip, rounds: int) -> dict[str, float | int] | None:
    federation, seed = exchange.federation, exchange.seed
    taking_part = None
    if federation.participation != 1.0:

        def taking_part(k: int) -> np.ndarray:
            active = participants(federation, federation.participation, seed, k)
            return active[federation.training]

    return predict(exchange.schedule, taking_part, rounds)


def _divergence(exchange: Gossip, correction: Correction) -> list[str]:
    """Return a warning where the correction diverges by itself. Collective."""
    schedule, factor = exchange.routing.schedule, 0.0
    if not correction.linear or schedule.period == 1 or exchange.computed_in_rounds:
        return []
    if schedule.n > MOST_NODES:
        return []
    communicator = exchange.federation.communicator
    if communicator.rank == 0 and exchange.routing.cliques is None:
        factor = growth(correction, schedule)
    factor = communicator.broadcast_object(factor)
    if factor <= BEARABLE:
        return []
    return [
        f"warning: by itself this correction enlarges differences between clients {factor:.0e} "
        f"times in at most {PLAYED} rounds of this schedule, so that training may diverge; "
        "allowed: tracking, or another schedule"
    ]


def _server_lines(server: Server, payload: int, itemsize: int) -> list[str]:
    federation, size = server.federation, payload // itemsize
    moved, subtrees = bytes_of_sum(federation, payload), len(federation.tree.roots)
    how = f"ranks add sums of subtrees of clients, {subtrees} in all"
    if server.aggregator is not None:
        moved, how = server.aggregator.traffic(payload, itemsize, moved, federation)
    if server.pre_aggregator is not None and server.pre_aggregator.compares:
        moved += bytes_to_rank_0(federation, payload)
    everyone = federation.training
    sent = up = payload * len(everyone)
    if server.compressor is not None and payload:
        bits = server.compressor.bits(size, itemsize, Draws(server.seed, 1), everyone)
        up = -(-int(bits.sum()) // 8)
    return [
        f"exchange    server; the federation sends {up:,} bytes up and {sent:,} down a round "
        "in which all take part",
        f"            MPI moves {moved:,} bytes a round, {how}",
    ]


def _gossip_lines(gossip: Gossip, payload: int, itemsize: int) -> list[str]:
    first, lines, schedule = 1, [], gossip.schedule
    if isinstance(schedule, Chosen):
        first = schedule.rounds[0]
        lines = [
            f"            {len(schedule.rounds)} of {schedule.horizon} rounds communicate, from "
            f"round {first} on"
        ]
    if gossip.correction is not None and gossip.correction.chooses:
        lines += ["            if all ask whom they may; clients choose whom they ask"]
    if gossip.gossip_steps > 1:
        lines += [f"            {gossip.gossip_steps} times in a round"]
    route = gossip.routing.route((first - 1) * gossip.gossip_steps + 1, ~gossip.federation.unseen)
    if gossip.correction is not None:
        payload = gossip.correction.numbers(payload // itemsize) * itemsize
    return [*_of_route(route, schedule.period, payload, gossip.values_kept), *lines]


def _of_route(route: Route, period: int | None, payload: int, values_kept: int) -> list[str]:
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
