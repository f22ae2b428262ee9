"""Agreement of ranks on bad input and on requests to stop."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

from mpifed.errors import AgreedInputError, AgreedStop, InputError, StopRequested
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
    mine = str(failure) if isinstance(failure, InputError) else None
    every = communicator.gather_object(mine)
    first = _first(every) if every is not None else None
    message = communicator.broadcast_object(first)
    if message is None:
        raise AgreedStop from failure
    raise AgreedInputError(message) from failure


def _first(every: list[str | None]) -> str | None:
    """The first of the messages, one per rank; rank 0 speaks for all, as it reads for all."""
    for rank, message in enumerate(every):
        if message is not None:
            return f"rank {rank}: {message}" if rank and None in every else message
    return None


def share_leader(communicator: Communicator) -> None:
    """Show the supervisors where that of rank 0 listens, for other hosts. Collective."""
    heartbeat.mpi_has_begun(communicator.broadcast_object(heartbeat.leader()))
