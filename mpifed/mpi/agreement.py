"""Agreement of ranks on bad input and on requests to stop, and what they tell all guards."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar, cast

from mpifed.errors import AgreedInputError, AgreedStop, InputError, StopRequested, text_of
from mpifed.mpi.communicator import Communicator
from mpifed.watchdog import heartbeat

# Seconds that a rank which refuses the input, or stops, waits for the others to do so too.
PATIENCE = 3.0

T = TypeVar("T")


def agree(communicator: Communicator, action: Callable[[], T]) -> T:
    """Run ``action`` on every rank; if it fails on any, raise the same error on all.
    Collective.
    """
    result: T | None = None
    failure: InputError | StopRequested | None = None
    try:
        result = action()
    except (InputError, StopRequested) as error:
        failure = error
    fine = communicator.all_agree(failure is None, PATIENCE)
    if fine:
        return cast(T, result)
    if fine is None and failure is not None:
        raise failure
    mine = text_of(failure) if isinstance(failure, InputError) else None
    every = communicator.gather_object(mine)
    first = _first(every, communicator.numbers) if every is not None else None
    message = communicator.broadcast_object(first)
    if message is None:
        raise AgreedStop from failure
    raise AgreedInputError(message) from failure


def _first(every: list[str | None], numbers: Sequence[int]) -> str | None:
    """The first of the messages, one per rank, with its rank if some ranks have none."""
    for rank, message in zip(numbers, every, strict=True):
        if message is not None:
            return message if None not in every else f"rank {rank}: {message}"
    return None


def share_guard_addresses(communicator: Communicator) -> None:
    """Send every rank's guard the addresses of all others, if there are guards. Collective."""
    every = communicator.gather_object((socket.gethostname(), heartbeat.port(), heartbeat.guard()))
    key = secrets.token_hex(16) if every is not None else None
    every, key = communicator.broadcast_object((every, key))
    heartbeat.send_to_guard(rank=communicator.rank, key=key, peers=every)


def share_hosted_clients(communicator: Communicator, clients: Iterable[int]) -> None:
    """Send every guard which clients each rank hosts, in words. Collective."""
    place = heartbeat.describe_clients([int(client) for client in clients])
    heartbeat.remember_clients(place)
    every = communicator.broadcast_object(communicator.gather_object(place))
    places = [heartbeat.describe_clients([])] * communicator.job_size
    for rank, described in zip(communicator.numbers, every, strict=True):
        places[rank] = described
    heartbeat.send_to_guard(places=places)
