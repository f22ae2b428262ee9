"""What a round would take on other numbers of ranks: ``--plan``."""

from __future__ import annotations

import math
import os
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from mpifed.config.configuration import Configuration
from mpifed.mpi.communicator import Communicator
from mpifed.mpi.polling import LARGE, LONGEST_PAUSE
from mpifed.state import tensors
from mpifed.training.engine import Engine
from mpifed.training.network import Network, ping_pong, wall_seconds
from mpifed.training.plan_words import Plan, refuse_unmeasured
from mpifed.training.played_rounds import Measured, measured, played, turn
from mpifed.training.spare import PAUSE, hosting_on
from mpifed.watchdog.throwaway import meanwhile
from topologies.inputs import in_bytes

# Share of their cores' idle time in which ranks that share them poll for large messages: fitted to
# rounds on 4, 8 and 16 ranks (docs/performance_model.md).
BUSY_SHARE = 0.5

# Copies of a rank that compute at a time while one is measured, at most.
MOST = 16

# Looks before a pause is that long: the first is 0.1 ms, and each twice the one before.
FIRST_LOOKS = 5

# Rows of the participants that a round holds beside the state: begun, trained, their gradient.
COPIES = 3


@dataclass(frozen=True)
class Forecast:
    """A round on so many ranks."""

    ranks: int
    hosting: int
    hosted: int
    compute: float
    network: float
    work: float
    waits: float
    look: float
    polled: int
    moved: float
    memory: float

    @property
    def total(self) -> float:
        """Wall seconds of a round."""
        return self.compute + self.network

    def cpu(self, wall: float) -> float:
        """Return the CPU seconds of all ranks in a round of ``wall`` seconds."""
        asleep = (self.ranks - self.hosting) * wall / PAUSE * self.look
        if not self.waits:
            return self.hosting * self.work + asleep
        looks = self.waits * FIRST_LOOKS + max(0.0, wall - self.work) / LONGEST_PAUSE
        spent = self.hosting * (self.work + looks * self.look) + asleep
        return spent + BUSY_SHARE * max(0.0, self.polled * wall - spent)

    def sharing(self, cores: float) -> Forecast:
        """Return the same where ranks take turns on so many cores, and wake late from waits."""
        turns, wall = max(1.0, self.hosting / cores), self.total
        late = min(LONGEST_PAUSE, (turns - 1) * self.work / self.waits / 2) * self.waits
        for _ in range(40):  # each step is half of the one before, or less
            wall = max(wall, self.cpu(wall) / cores + late)
        return replace(self, network=wall - self.compute)


def forecast(
    configuration: Configuration, ranks: int, per_node: int, cores: int, network: Network
) -> Forecast:
    """Return what a round takes, one rank of which is played here."""
    base, nodes = resident(), math.ceil(ranks / per_node)
    hosting, here = hosting_on(configuration, ranks, per_node, cores)
    engine, rank = played(configuration, hosting, here)
    turns = max(1.0, min(here, hosting) / cores)
    busy = min(hosting, here, round(turns * (os.cpu_count() or 1)))
    with meanwhile(partial(turn, engine, rank), 0 if engine.rows.on_disk else min(busy, MOST) - 1):
        found = measured(engine, rank)
    rounds, n_rounds = found.operations, len(found.operations)
    waited = sum(wall_seconds(network, one, hosting, here) for one in rounds) / n_rounds
    messages = _messages(network, hosting, found)
    compute = max(found.busiest, found.average * turns)
    network_seconds = max(waited, messages * turns)
    waits = sum(map(len, rounds)) / n_rounds if turns > 1 else 0.0
    large = any(one.sent + one.received >= LARGE for every in rounds for one in every)
    shared = cores * nodes if waits else 0
    made = Forecast(
        ranks,
        hosting,
        int(np.bincount(engine.setup.federation.owner).max()),
        compute,
        network_seconds,
        found.average + messages,
        waits,
        cost_of_a_look() if waits or hosting < ranks else 0.0,
        shared if large else 0,
        sum(one.sent for every in rounds for one in every) / n_rounds,
        base + _own_bytes(engine, found.participants),
    )
    return made.sharing(shared) if waits else made


def _messages(network: Network, ranks: int, found: Measured) -> float:
    """Return the CPU seconds that the messages of a round take a rank, on average."""
    busiest, idle = (
        sum(network.cpu_seconds(one, ranks) for every in rounds for one in every)
        / max(1, len(rounds))
        for rounds in (found.operations, found.idle)
    )
    return idle + (busiest - idle) * found.share if found.idle else busiest


def cost_of_a_look() -> float:
    """Return the CPU seconds of a rank that wakes to look for a message, the least of several."""
    found: list[float] = []
    for _ in range(5):
        before = time.process_time()
        for _ in range(20):
            time.sleep(LONGEST_PAUSE)
        found.append((time.process_time() - before) / 20)
    return min(found)


def _own_bytes(engine: Engine, participants: int) -> float:
    """Bytes of samples, state and a round's rows of so many participants."""
    setup = engine.setup
    held = [] if engine.rows.on_disk else tensors(engine.state, setup.exchange.shared_is_rows)
    state = sum(tensor.nbytes for _, tensor, _ in held)
    row = setup.algorithm.payload() * setup.dtype.itemsize
    return engine.samples.bytes_held + state + COPIES * row * participants


def resident() -> int:
    """Return the bytes of memory that this process has; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return 0
    return pages * os.sysconf("SC_PAGESIZE")


def forecast_lines(
    plan: Plan, configuration: Configuration, communicator: Communicator
) -> list[str]:
    """Return the lines of ``--plan``, those of rank 0 on every rank; collective."""
    network, how = plan.network, "given"
    if network is None:
        if communicator.size < 2:
            refuse_unmeasured(plan)
        network, how = ping_pong(communicator), "measured between ranks 0 and 1"
    lines = None
    if communicator.rank == 0:
        here = os.cpu_count() or 1
        cores = plan.cores or plan.ranks_per_node or here
        per_node = plan.ranks_per_node or cores
        rows = [forecast(configuration, count, per_node, cores, network) for count in plan.ranks]
        lines = [
            f"network     latency {network.latency:.3g} s, overhead {network.overhead:.3g} s, "
            f"{network.bandwidth:.3g} bytes a second, {how}",
            f"nodes       {per_node} ranks on {cores} cores each",
            "   ranks  hosting  most clients/rank  compute s  network s    round s  CPU s/round  "
            "MPI bytes/rank  memory/rank",
            *(_row(one) for one in rows),
        ]
    return communicator.broadcast_object(lines)


def _row(one: Forecast) -> str:
    return (
        f"{one.ranks:8d} {one.hosting:8d} {one.hosted:18d} {one.compute:10.3g} "
        f"{one.network:10.3g} {one.total:10.3g} {one.cpu(one.total):12.3g} "
        f"{in_bytes(one.moved):>15} {in_bytes(one.memory):>12}"
    )
