"""The clock of the simulated federation: when its clients would have finished each round."""

from __future__ import annotations

import numpy as np

from mpifed.errors import RunError
from mpifed.exchange.base import Ledger
from mpifed.federation.links import read_links, step_seconds
from mpifed.federation.network import ComputeOptions, NetworkOptions
from mpifed.federation.participation import efforts
from mpifed.local.minibatches import work_of
from mpifed.training.build import Setup
from topologies.links.network import after_gossip, server_round

COLUMN = "simulated_seconds"


def is_simulated(setup: Setup) -> bool:
    """Return whether the configuration has a network or computing times."""
    configuration = setup.configuration
    return (configuration.network, configuration.compute) != (NetworkOptions(), ComputeOptions())


def describe_clock(setup: Setup) -> list[str]:
    """Return a line for ``--dry-run`` about the simulated network; none without one. Collective."""
    if not is_simulated(setup):
        return []
    clock, configuration = SimulatedClock(setup), setup.configuration
    network, n = clock.links.network, len(clock.start)
    where = f"{n} clients"
    if network.n > 1:
        where += f" at {network.n} sites"
        where += f", the server at site {clock.server}" * (configuration.exchange.name == "server")
    return [
        f"clock       {where}; latencies {network.latency.min():g} to {network.latency.max():g} s; "
        f"computing times are {configuration.compute.name}"
    ]


class SimulatedClock:
    """When each training client begins its next round, in seconds since the start of the run."""

    def __init__(self, setup: Setup) -> None:
        federation, configuration = setup.federation, setup.configuration
        self.setup = setup
        training, communicator = federation.training, federation.communicator
        self.links, self.server = read_links(configuration.network, len(training), communicator)
        self.step_seconds = step_seconds(
            configuration.compute, self.links, training, configuration.seed, communicator
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
        if self.setup.configuration.compute.name == "measured" and self.measured is None:
            self.measured = self._measure(
                local, local_steps(self.setup, round, self._among(active))
            )
        arcs = self.setup.exchange.arcs(round, active, self.setup.dtype.itemsize)
        up, down = after.up_bits - before.up_bits, after.down_bits - before.down_bits
        self.add(round, active, arcs, up, down)

    def add(
        self, round: int, active: np.ndarray, arcs: np.ndarray | None, up: float, down: float
    ) -> None:
        """Add a round whose messages are known."""
        clients = self._among(active)
        here = np.flatnonzero(active[self.setup.federation.training])
        steps = local_steps(self.setup, round, clients)
        work = np.zeros(len(self.start))
        each = self.step_seconds(round, clients)
        work[here] = steps * (each if self.measured is None else self.measured)
        if arcs is None:
            n = max(1, len(here))
            taken = server_round(self.links, here, work[here], down / n, up / n, self.server)
            self.start = np.full(len(self.start), self.start.max() + taken)
            return
        receivers, senders = arcs.T
        travel = self.links.travel(receivers, senders, up / max(1, len(arcs)))
        if not up:
            receivers, senders, travel = receivers[:0], senders[:0], travel[:0]
        self.start = after_gossip(self.start, work, receivers, senders, travel)

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
    configuration, read = setup.configuration, setup.algorithm.local_options
    if read is not None and not {"epochs", "steps"} & set(read):
        return np.ones(len(clients), np.int64)
    local = configuration.local
    work = work_of(
        setup.federation.n_train[clients],
        local.batch_size,
        local.epochs,
        local.steps,
        local.sampling,
    )
    effort = efforts(configuration.participation, clients, configuration.seed, round)
    return work.steps if effort is None else work.shortened(effort).steps
