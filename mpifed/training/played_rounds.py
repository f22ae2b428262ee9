"""Rounds of one rank of many, played by this process: their CPU seconds, and what they ask
of MPI.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np

from mpifed.config.configuration import Configuration
from mpifed.exchange.gossip import Gossip
from mpifed.federation.clients import Federation
from mpifed.federation.participation import inclusion
from mpifed.mpi.played import Operation, Played
from mpifed.training.asynchronous import taking_part, waits
from mpifed.training.build import make
from mpifed.training.clock import Clock
from mpifed.training.engine import Engine
from mpifed.training.samples import samples_of

# Rounds that are measured, at most, and seconds after which no other is begun.
ROUNDS, PATIENCE = 11, 10.0

# Rounds without a participant here after which no more are looked for.
UNBUSY = 1000


@dataclass(frozen=True)
class Measured:
    """What was measured of some rounds."""

    busiest: float
    average: float
    operations: list[list[Operation]]
    idle: list[list[Operation]]
    share: float
    participants: int


@dataclass(frozen=True)
class _Round:
    """One played round: CPU seconds, operations, and samples of participants."""

    seconds: float
    operations: list[Operation]
    own: float
    most: float
    mean: float
    participants: int


def played(configuration: Configuration, ranks: int, per_node: int) -> tuple[Engine, Played]:
    """Return the engine of one of ``ranks`` ranks, as rank 0, ready for a round."""
    rank = Played(ranks, per_node)

    def renumber(owner: np.ndarray, n_train: np.ndarray) -> np.ndarray:
        loads = np.bincount(owner, n_train, minlength=ranks)
        all_take_part = inclusion(configuration.participation, int((n_train > 0).sum())) == 1
        distances = np.abs(loads - loads[loads > 0].mean()) if all_take_part else -loads
        chosen = int(np.where(loads > 0, distances, np.inf).argmin())
        return np.where(owner == 0, chosen, np.where(owner == chosen, 0, owner)).astype(owner.dtype)

    setup = make(configuration, rank, configuration.rounds, renumber=renumber)
    engine = Engine(setup, samples_of(setup), Clock())
    engine.prepare()
    return engine, rank


def measured(engine: Engine, rank: Played) -> Measured:
    """Return the CPU seconds of a round, the median of some, and what they ask of MPI."""
    turn(engine, rank)
    found: list[_Round] = []
    idle: list[_Round] = []
    began, busy = time.monotonic(), 0
    while busy < ROUNDS and len(found) < busy + UNBUSY:
        if found and time.monotonic() - began >= PATIENCE:
            break
        one, without = turn(engine, rank)
        found.append(one)
        idle += [without] if without is not None else []
        busy += one.own > 0
    return _together(found, idle)


def _together(found: list[_Round], idle: list[_Round]) -> Measured:
    """Return what rounds say together, those with and those without participants here."""
    alone = [one for one in idle if one.most > 0] or [
        one for one in found if not one.own and one.most > 0
    ]
    rest = statistics.median(one.seconds for one in alone) if alone else 0.0
    rates = [max(0.0, one.seconds - rest) / one.own for one in found if one.own > 0]
    rate = statistics.median(rates) if rates else 0.0
    most, mean = (statistics.fmean(getattr(one, of) for one in found) for of in ("most", "mean"))
    # Rounds in which nobody takes part are over at once.
    rest *= statistics.fmean(one.most > 0 for one in found)
    return Measured(
        rest + rate * most,
        rest + rate * mean,
        [one.operations for one in found],
        [one.operations for one in idle],
        mean / most if most else 1.0,
        max(one.participants for one in found),
    )


def turn(engine: Engine, rank: Played) -> tuple[_Round, _Round | None]:
    """Play the next round as the rank that computes most in it, and again without participants."""
    setup, federation = engine.setup, engine.setup.federation
    active = taking_part(setup, engine.round + 1)
    everyone = bool(active[federation.training].all())
    loads = loads_of(federation, active)
    if everyone or rank.size == 1 or _chooses_participants(engine):
        return _played(engine, rank, active, loads), None
    own = federation.hosted_of(0)
    active = traded(federation, active)
    without = active.copy()
    without[own] = False
    others = federation.training[federation.owner[federation.training] != 0]
    if not active[own].any() or not len(others):
        return _played(engine, rank, active, loads), None
    if not without.any():
        without[others[0]] = True
    rank.keep_answers()
    one = _played(engine, rank, active, loads)
    engine.round -= 1
    rank.repeat_answers()
    idle = _played(engine, rank, without, loads)
    rank.answer_as_this_rank()
    return one, idle


def _chooses_participants(engine: Engine) -> bool:
    """Whether the exchange says itself who takes part, and counts on those."""
    exchange = engine.setup.exchange
    chooses = isinstance(exchange, Gossip) and hasattr(exchange.schedule, "taking_part")
    return chooses or not waits(engine.setup)


def _played(engine: Engine, rank: Played, active: np.ndarray, loads: np.ndarray) -> _Round:
    """Run a round among ``active``, and return what it takes; ``loads`` are those of all ranks."""
    federation = engine.setup.federation
    own = float(federation.n_train[federation.hosted][active[federation.hosted]].sum())
    rank.operations.clear()
    answering, before = rank.answering, time.process_time()
    engine.advance(active)
    engine.agree(False)
    seconds = time.process_time() - before - (rank.answering - answering)
    here = int(active[federation.hosted].sum())
    return _Round(
        seconds, list(rank.operations), own, float(loads.max()), float(loads.mean()), here
    )


def loads_of(federation: Federation, active: np.ndarray) -> np.ndarray:
    """Return the training samples of the participants of each rank, float64 (ranks,)."""
    samples = np.where(active, federation.n_train, 0)
    return np.bincount(federation.owner, samples, minlength=federation.communicator.size)


def traded(federation: Federation, active: np.ndarray) -> np.ndarray:
    """Return who takes part where rank 0 is given as much as the busiest rank, which gets the
    rest.
    """
    loads = loads_of(federation, active)
    busiest = int(loads.argmax())
    made = active.copy()
    if busiest == 0:
        return made
    both = (federation.hosted_of(rank) for rank in (0, busiest))
    first, other = (hosted[~federation.unseen[hosted]] for hosted in both)
    if not len(first):
        return made
    made[first] = made[other] = False
    made[_as_large(federation.n_train, first, float(loads[busiest]))] = True
    made[other[: int(active[first].sum())]] = True
    return made


def _as_large(n_train: np.ndarray, clients: np.ndarray, wanted: float) -> list[int]:
    """Return some of the clients, the largest first, whose samples are about as many as wanted."""
    chosen: list[int] = []
    for client in clients[np.argsort(-n_train[clients], kind="stable")]:
        if not chosen or abs(wanted - n_train[client]) < abs(wanted):
            chosen.append(int(client))
            wanted -= n_train[client]
    return chosen
