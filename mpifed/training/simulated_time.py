"""The clock of the simulated federation: when its clients finish, also those that do not wait."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from scipy.special import ndtri

from mpifed.errors import InputError, RunError
from mpifed.exchange.asynchrony import Mixes, Timetable, arcs_of, from_rank_0, partners_of
from mpifed.exchange.base import Ledger
from mpifed.exchange.gossip import Gossip
from mpifed.federation.federation import participants
from mpifed.federation.options import ComputeOptions, NetworkOptions
from mpifed.federation.participation import efforts
from mpifed.mpi.agreement import agree
from mpifed.mpi.communicator import Communicator
from mpifed.random import client_keys
from mpifed.training.setup import Setup
from topologies.errors import TopologyError
from topologies.graphs.files import read_numbers
from topologies.links.events import Computations, Seconds, Versions
from topologies.links.network import (
    Links,
    Network,
    after_gossip,
    all_reduce_round,
    at_sites,
    one_site,
    read_network,
    server_round,
)

COLUMN = "simulated_seconds"

# Seconds of computations that are kept until all clients have come to them.
MOST_CACHED = 1 << 21

# Columns of metrics.csv of runs that do not wait.
STALENESS = ("staleness_mean", "staleness_max")


def is_simulated(setup: Setup) -> bool:
    """Return whether the configuration has a network or computing times."""
    return (setup.network, setup.compute) != (NetworkOptions(), ComputeOptions())


class SimulatedClock:
    """When each training client begins its next round, in seconds since the start of the run."""

    def __init__(self, setup: Setup) -> None:
        federation, self.setup = setup.federation, setup
        training, communicator = federation.training, federation.communicator
        self.links, self.server = read_links(setup.network, len(training), communicator)
        self.step_seconds = step_seconds(
            setup.compute, self.links, training, setup.seed, communicator
        )
        self.start = np.zeros(len(training))
        self.measured: float | None = None

    @property
    def seconds(self) -> float:
        """Seconds from the start of the run until the last client has finished its rounds."""
        return float(self.start.max(initial=0.0))

    @property
    def row(self) -> dict[str, float | int | None]:
        """Columns of metrics.csv."""
        return {COLUMN: self.seconds}

    def stored(self) -> np.ndarray:
        """Return what a checkpoint keeps: ``measured`` (NaN for None), then ``start``."""
        return np.array([np.nan if self.measured is None else self.measured, *self.start])

    def restore(self, stored: np.ndarray) -> None:
        """Continue from what ``stored`` returned; raise ``RunError`` for other clients' times."""
        if len(stored) != 1 + len(self.start):
            raise RunError(
                f"the checkpoint has the times of {len(stored) - 1} clients, but {len(self.start)} "
                "are in training"
            )
        self.measured = None if np.isnan(stored[0]) else float(stored[0])
        self.start = stored[1:].copy()

    def advance(
        self, round: int, active: np.ndarray, before: Ledger, after: Ledger, local: float
    ) -> None:
        """Add a round. Collective."""
        if self.setup.compute.name == "measured" and self.measured is None:
            self.measured = self._measure(
                local, local_steps(self.setup, round, self._among(active))
            )
        arcs = self.setup.exchange.arcs(round, active, self.setup.dtype.itemsize)
        up, down = after.up_bits - before.up_bits, after.down_bits - before.down_bits
        self.add(round, active, arcs, up, down)

    def add(
        self, round: int, active: np.ndarray, arcs: list[np.ndarray] | None, up: float, down: float
    ) -> None:
        """Add a round whose messages are known."""
        clients = self._among(active)
        positions = np.flatnonzero(active[self.setup.federation.training])
        steps = local_steps(self.setup, round, clients)
        work = np.zeros(len(self.start))
        each = self.step_seconds(round, clients)
        work[positions] = steps * (each if self.measured is None else self.measured)
        if arcs is None:
            n = max(1, len(positions))
            of_all = self.links, positions, work[positions], down / n, up / n
            if self.server == "all_reduce":
                taken = all_reduce_round(*of_all)
            else:
                rate = self.setup.network.server_bandwidth
                taken = server_round(*of_all, self.server, rate)
            self.start = np.full(len(self.start), self.start.max() + taken)
            return
        messages = sum(map(len, arcs))
        for receivers, senders in (of_step.T for of_step in arcs):
            travel = self.links.travel(receivers, senders, up / max(1, messages))
            if not up:
                receivers, senders, travel = receivers[:0], senders[:0], travel[:0]
            self.start = after_gossip(self.start, work, receivers, senders, travel)
            work = np.zeros(len(self.start))

    def _among(self, active: np.ndarray) -> np.ndarray:
        """Return the training clients among the active ones."""
        training = self.setup.federation.training
        return np.asarray(training[active[training]])

    def _measure(self, local: float, steps: np.ndarray) -> float | None:
        """Return the mean seconds of a step over all ranks; None where none was taken."""
        nanoseconds = np.array([round(local * 1e9)], np.int64)
        total = self.setup.federation.communicator.sum(nanoseconds)[0]
        return float(total * 1e-9 / steps.sum()) if steps.sum() else None


def local_steps(setup: Setup, round: int, clients: np.ndarray) -> np.ndarray:
    """Return each client's local steps; one where a method takes none of the section ``local``."""
    federation, read = setup.federation, setup.algorithm.local_options
    if read is not None and not {"epochs", "steps"} & set(read):
        return np.ones(len(clients), np.int64)
    work = setup.solver.work(federation.n_train[clients])
    effort = efforts(federation.participation, clients, setup.seed, round)
    return work.steps if effort is None else work.shortened(effort).steps


def waits(setup: Setup) -> bool:
    """Return whether the clients of a run wait for each other."""
    return not isinstance(setup.exchange, Gossip) or setup.exchange.asynchrony == "none"


class AsynchronousClock:
    """The time of a run whose clients do not wait for each other."""

    def __init__(self, timetable: Timetable) -> None:
        self.timetable = timetable

    @property
    def seconds(self) -> float:
        """Seconds from the start of the run until the last computation of the round has ended."""
        return self.timetable.seconds

    @property
    def row(self) -> dict[str, float | int | None]:
        """Columns of metrics.csv: the clock, and the staleness of all that has been mixed."""
        total, number, largest = self.timetable.staleness.tolist()
        mean = total / number if number else None
        return {COLUMN: self.seconds, **dict(zip(STALENESS, (mean, largest), strict=True))}

    def stored(self) -> np.ndarray:
        """Return what a checkpoint keeps: a NaN, as nothing is measured, and all events."""
        return np.concatenate([[np.nan], self.timetable.stored()])

    def restore(self, stored: np.ndarray) -> None:
        """Continue from what ``stored`` returned; raise ``RunError`` if it is of other clients."""
        if not np.isnan(stored[0]):
            raise RunError("the checkpoint has measured times, but clients do not wait")
        self.timetable.restore(stored[1:])

    def advance(
        self, round: int, active: np.ndarray, before: Ledger, after: Ledger, local: float
    ) -> None:
        """Do nothing: time has passed when the round began."""


def clock_of(setup: Setup) -> SimulatedClock | AsynchronousClock | None:
    """Return the clock of the simulated federation, None where there is none. Collective."""
    if isinstance(setup.exchange, Gossip) and not waits(setup):
        setup.exchange.timetable = timetable_of(setup, setup.exchange)
        return AsynchronousClock(setup.exchange.timetable)
    return SimulatedClock(setup) if is_simulated(setup) else None


def taking_part(setup: Setup, round: int) -> np.ndarray:
    """Return who takes part in a round, the last one or the one after it. Collective."""
    federation = setup.federation
    present = participants(federation, federation.participation, setup.seed, round)
    return setup.exchange.participants(round, present)


def timetable_of(setup: Setup, exchange: Gossip) -> Timetable:
    """Return the events of a run before its first round. Collective."""
    clients, communicator = setup.federation.training, setup.federation.communicator
    links, _ = read_links(setup.network, len(clients), communicator)
    bits = 8.0 * setup.algorithm.payload() * setup.dtype.itemsize
    seed, steps = setup.seed, local_steps(setup, 1, clients)
    of_step = step_seconds(setup.compute, links, clients, seed, communicator)

    most = max(1, MOST_CACHED // max(1, len(clients)))

    @functools.lru_cache(maxsize=most)
    def of_all(number: int) -> np.ndarray:
        return of_step(number, clients) * steps

    def seconds(numbers: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        each = [of_all(number)[node] for number, node in zip(numbers.tolist(), nodes, strict=True)]
        return np.array(each, float)

    computing: Seconds = from_rank_0(communicator, seconds)
    if exchange.asynchrony == "pairwise":
        computing = _after_answers(computing, links, bits, exchange, seed)
    else:
        everyone = np.arange(len(clients))
        arcs = arcs_of(exchange.routing.weights(1), links, bits)
        exchange.keep_versions(arcs.reach, computing(np.ones(len(clients), np.int64), everyone))
    try:
        computations = Computations.start(len(clients), computing)
    except TopologyError as error:
        raise InputError(f"compute: {error}") from None
    mixes: Mixes = "pairwise" if exchange.asynchrony == "pairwise" else "wait_free"
    versions = Versions.empty(len(clients), exchange.values_kept if mixes == "wait_free" else 0)
    return Timetable(mixes, links, bits, seed, computations, versions)


def _after_answers(
    seconds: Seconds, links: Links, bits: float, exchange: Gossip, seed: int
) -> Seconds:
    """Return the seconds of computations that begin when the partner of the last has answered."""

    def with_wait(numbers: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        partners = partners_of(exchange.routing.weights(1), nodes, numbers - 1, seed)
        there = links.travel(nodes, partners, bits, shared=False)
        back = links.travel(partners, nodes, bits, shared=False)
        waits = (partners != nodes) & (numbers > 1)
        return seconds(numbers, nodes) + np.where(waits, there + back, 0.0)

    return with_wait


# Seconds of a local step by round and clients, int64 (m,): float64 (m,).
StepSeconds = Callable[[int, np.ndarray], np.ndarray]


def read_links(
    options: NetworkOptions, n: int, communicator: Communicator
) -> tuple[Links, int | Literal["all_reduce"] | None]:
    """Return the links among ``n`` training clients, and the site of a server. Collective."""
    up, down = options.upload, options.download
    if options.path is None:
        rate, up, down = (
            math.inf if limit is None else limit for limit in (options.bandwidth, up, down)
        )
        shared = options.link == "shared"
        return one_site(n, options.latency, rate, up, down, shared), options.server
    path = options.path
    network: Network = _by_rank_0(communicator, lambda: read_network(path), "network.path")
    sites = np.ones(network.n)
    network = replace(
        network,
        upload=network.upload if up is None else up * sites,
        download=network.download if down is None else down * sites,
        # Clients of one site do not need the network between sites.
        latency=np.where(np.eye(network.n, dtype=bool), 0.0, network.latency),
    )
    server = options.server
    if server is None:
        server = int(np.argmin((network.latency + network.latency.T).max(axis=1)))
    if server != "all_reduce" and server >= network.n:
        raise InputError(
            f"network.server is {server}, but '{path}' has {network.n} sites; allowed: 0 to "
            f"{network.n - 1}"
        )
    try:
        return at_sites(network, n), server
    except TopologyError as error:
        raise InputError(f"network.path: {error}") from None


def step_seconds(
    options: ComputeOptions,
    links: Links,
    clients: np.ndarray,
    seed: int,
    communicator: Communicator,
) -> StepSeconds:
    """Return the function that gives the seconds of a local step. Collective."""
    if options.name == "trace":
        path = str(options.path)
        table = _by_rank_0(communicator, lambda: _trace(path, len(clients)), "compute.path")
        column = np.zeros(int(clients.max()) + 1, np.int64)
        column[clients] = np.arange(len(clients)) if table.shape[1] > 1 else 0
        return lambda round, some: table[(round - 1) % len(table), column[some]]
    if options.name == "lognormal":

        def lognormal(round: int, some: np.ndarray) -> np.ndarray:
            ever = options.client_sigma * _normal(seed, "speed", 0, some)
            now = options.round_sigma * _normal(seed, "speed of a round", round, some)
            return options.seconds * np.exp(ever + now)

        return lognormal
    if options == ComputeOptions():
        each = np.zeros(int(clients.max()) + 1)
        each[clients] = links.network.compute[links.site]
        return lambda round, some: each[some]
    return lambda round, some: np.full(len(some), options.seconds)


def _normal(seed: int, purpose: str, round: int, clients: np.ndarray) -> np.ndarray:
    """Standard normal numbers, one for each client."""
    bits = client_keys(seed, purpose, round, clients) >> np.uint64(11)
    return np.asarray(ndtri((bits + 0.5) * 2.0**-53))


def _trace(path: str, n: int) -> np.ndarray:
    table = read_numbers(path)
    if table.shape[1] not in (1, n):
        raise TopologyError(
            f"'{path}' has {table.shape[1]} columns, but there are {n} clients in training; "
            f"allowed: {n}, or 1 for all"
        )
    if not (np.isfinite(table) & (table >= 0)).all():
        raise TopologyError(f"'{path}' must have seconds of at least 0")
    return table


def _by_rank_0(communicator: Communicator, make: Callable[[], Any], field: str) -> Any:
    def on_rank_0() -> Any:
        try:
            return make() if communicator.rank == 0 else None
        except TopologyError as error:
            raise InputError(f"{field}: {error}") from None

    return communicator.broadcast_object(agree(communicator, on_rank_0))
