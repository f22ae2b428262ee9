"""The clock of a federation whose clients do not wait: its events say who takes part in a round."""

from __future__ import annotations

import functools

import numpy as np

from mpifed.errors import InputError, RunError
from mpifed.exchange.asynchrony import Timetable
from mpifed.exchange.asynchrony.channel import Mixes, from_rank_0, partners_of
from mpifed.exchange.base import Ledger
from mpifed.exchange.gossip import Gossip
from mpifed.federation.clients import participants
from mpifed.federation.links import read_links, step_seconds
from mpifed.training.build import Setup
from mpifed.training.simulated import COLUMN, SimulatedClock, is_simulated, local_steps
from topologies.inputs import TopologyError
from topologies.links.events import Computations, Seconds, Versions
from topologies.links.network import Links

# Seconds of computations that are kept until all clients have come to them.
KEPT = 1 << 21


# Columns of metrics.csv of runs that do not wait.
STALENESS = ("staleness_mean", "staleness_max")


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
    configuration = setup.configuration
    present = participants(setup.federation, configuration.participation, configuration.seed, round)
    return setup.exchange.participants(round, present)


def timetable_of(setup: Setup, exchange: Gossip) -> Timetable:
    """Return the events of a run before its first round. Collective."""
    configuration, federation = setup.configuration, setup.federation
    clients, communicator = federation.training, federation.communicator
    links, _ = read_links(configuration.network, len(clients), communicator)
    bits = 8.0 * setup.algorithm.payload() * setup.dtype.itemsize
    seed, steps = configuration.seed, local_steps(setup, 1, clients)
    of_step = step_seconds(configuration.compute, links, clients, seed, communicator)

    most = max(1, KEPT // max(1, len(clients)))

    @functools.lru_cache(maxsize=most)
    def of_all(number: int) -> np.ndarray:
        return of_step(number, clients) * steps

    def seconds(numbers: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        each = [of_all(number)[node] for number, node in zip(numbers.tolist(), nodes, strict=True)]
        return np.array(each, float)

    made: Seconds = from_rank_0(communicator, seconds)
    if exchange.asynchrony == "pairwise":
        made = _there_and_back(made, links, bits, exchange, seed)
    try:
        computations = Computations.start(len(clients), made)
    except TopologyError as error:
        raise InputError(f"compute: {error}") from None
    mixes: Mixes = "pairwise" if exchange.asynchrony == "pairwise" else "wait_free"
    versions = Versions.empty(len(clients), exchange.values_kept if mixes == "wait_free" else 0)
    return Timetable(mixes, links, bits, seed, computations, versions)


def _there_and_back(
    seconds: Seconds, links: Links, bits: float, exchange: Gossip, seed: int
) -> Seconds:
    """Return the seconds of computations with an average after each: a message each way."""

    def with_answer(numbers: np.ndarray, nodes: np.ndarray) -> np.ndarray:
        taken, partners = seconds(numbers, nodes), nodes
        partners = partners_of(exchange.routing.weights(1), nodes, numbers, seed)
        there = links.travel(nodes, partners, bits, shared=False)
        back = links.travel(partners, nodes, bits, shared=False)
        return taken + np.where(partners == nodes, 0.0, there + back)

    return with_answer
