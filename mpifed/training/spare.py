"""Ranks that host no client: they leave the run to the others, and end as those do."""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable
from typing import Any, TypeVar

from mpifed.config.configuration import Configuration
from mpifed.errors import AgreedInputError, AgreedStop, PeerFailure
from mpifed.mpi.communicator import Communicator
from mpifed.watchdog import heartbeat

# Ranks that share a core from which on a run is told of ``hosts=cores``.
MANY = 4

# Seconds that a spare rank sleeps between two looks for the end of the run.
PAUSE = 0.1

# Numbers of the runs with spare ranks in this process: a request to stop is of one of them.
_runs = itertools.count()

T = TypeVar("T")


def hosting_ranks(configuration: Configuration, communicator: Communicator) -> list[int]:
    """Return the ranks that host clients, ascending, rank 0 among them. Collective."""
    ranks = list(range(communicator.size))
    if configuration.hosts == "cores" and communicator.size > 1:
        nodes = communicator.nodes()
        here = communicator.gather_object(_cores_of_this_process())
        cores = communicator.broadcast_object(here)
        ranks = first_per_core(nodes.tolist(), cores, configuration.threads)
    return ranks[: configuration.clients]


def remarks_on_cores(configuration: Configuration, communicator: Communicator) -> list[str]:
    """Return lines for the log where many ranks share the cores of this rank's node."""
    ranks, cores = communicator.local_size(), os.cpu_count() or 1
    if configuration.hosts == "cores" or ranks <= MANY * cores:
        return []
    hosting = max(1, cores // configuration.threads)
    return [
        f"{ranks} ranks share {cores} core{'s' * (cores > 1)}: with hosts=cores {hosting} of them "
        "would host all clients, which takes less time and memory and changes no number"
    ]


def first_per_core(nodes: list[int], cores: list[frozenset[int]], threads: int) -> list[int]:
    """Return the first ranks of every node, as many as it has cores for."""
    found = []
    for node in set(nodes):
        ranks = [rank for rank, its in enumerate(nodes) if its == node]
        usable = frozenset.union(*(cores[rank] for rank in ranks))
        found += ranks[: max(1, len(usable) // threads)]
    return sorted(found)


def _cores_of_this_process() -> frozenset[int]:
    if hasattr(os, "sched_getaffinity"):
        return frozenset(os.sched_getaffinity(0))
    return frozenset(range(os.cpu_count() or 1))


def beside_spare(
    communicator: Communicator,
    hosting: list[int],
    run: Callable[[Communicator, Callable[[], bool]], T],
    stop_requested: Callable[[], bool],
) -> T:
    """Run on some ranks, and let the others sleep until these have ended. Collective."""
    if len(hosting) == communicator.size:
        return run(communicator, stop_requested)
    number, part = next(_runs), communicator.among(hosting)
    if part is None:
        return _end_of_run(communicator, number, stop_requested)
    if part.rank:
        return run(part, stop_requested)
    spare = sorted({*range(communicator.size)} - {*hosting})
    end: tuple[T | None, BaseException | None] = None, PeerFailure()
    try:
        result = run(part, lambda: stop_requested() or _told_to_stop(communicator, number))
        end = result, None
        return result
    except (AgreedInputError, AgreedStop) as error:
        end = None, error
        raise
    finally:
        for rank in spare:
            communicator.tell(end, rank)


def _told_to_stop(communicator: Communicator, run: int) -> bool:
    """Whether a spare rank was asked to stop this run; one may have been just after another."""
    while (number := communicator.told()) is not None:
        if number == run:
            return True
    return False


def _end_of_run(communicator: Communicator, run: int, stop_requested: Callable[[], bool]) -> Any:
    """Sleep until rank 0 tells how the run has ended, and end so."""
    passed_on = False
    with heartbeat.waiting():
        while (told := communicator.told()) is None:
            if stop_requested() and not passed_on:
                communicator.tell(run, 0)
                passed_on = True
            time.sleep(PAUSE)
    result, error = told
    if error is not None:
        raise error
    return result
