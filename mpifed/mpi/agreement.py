"""Ranks that agree on whether the input is good, so that one may say why it is not, and whether to
stop; guards that are introduced to each other.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Iterable
from typing import TypeVar, cast

from mpifed.errors import AgreedInputError, AgreedStop, InputError, StopRequested, text_of
from mpifed.mpi.communicator import Communicator
from mpifed.supervision import heartbeat

PATIENCE = 3.0
"""Seconds that a rank which refuses the input, or stops, waits for the others to do so too."""

T = TypeVar("T")


def agree(communicator: Communicator, action: Callable[[], T]) -> T:
    """``action()`` on every rank; if any cannot, all raise the same ``InputError``.

    It names the rank unless all have one. If none has, but any was asked to stop, all raise
    ``AgreedStop``. A rank that fails alone, while the others wait for it amid ``action``, raises
    its own.
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
    message = communicator.broadcast_object(_first(every) if every is not None else None)
    if message is None:
        raise AgreedStop from failure
    raise AgreedInputError(message) from failure


def _first(every: list[str | None]) -> str | None:
    """The first of the sentences, one for each rank, with its rank if some have none."""
    for rank, message in enumerate(every):
        if message is not None:
            return message if None not in every else f"rank {rank}: {message}"
    return None


def introduce(communicator: Communicator) -> None:
    """Tells every rank's guard of all others, if there are guards; collective."""
    every = communicator.gather_object((socket.gethostname(), heartbeat.port(), os.getppid()))
    key = secrets.token_hex(16) if every is not None else None
    every, key = communicator.broadcast_object((every, key))
    heartbeat.tell(rank=communicator.rank, key=key, peers=every)


def tell_places(communicator: Communicator, clients: Iterable[int]) -> None:
    """Tells every guard in words which clients each rank hosts; collective.

    ``clients`` are those hosted here.
    """
    place = heartbeat.place([int(client) for client in clients])
    heartbeat.settle_in(place)
    heartbeat.tell(places=communicator.broadcast_object(communicator.gather_object(place)))
