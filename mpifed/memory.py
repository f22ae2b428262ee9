"""What is asked for, compared with the memory that there is."""

from __future__ import annotations

from mpifed.errors import InputError


def check_memory(needed: float, what: str) -> None:
    """Refuses what cannot be held, before it is made.

    Parameters
    ----------
    needed
        Bytes, at least.
    what
        The beginning of the message: the field and its value.

    Raises
    ------
    InputError
        If this process cannot have so much.

    Examples
    --------
    >>> check_memory(1e18, "clients is 1000000000000000, which")
    Traceback (most recent call last):
    mpifed.errors.InputError: clients is 1000000000000000, which needs 1 EB of memory, ...
    """
    from topologies.inputs import beyond_memory

    lacking = beyond_memory(needed)
    if lacking is not None:
        raise InputError(f"{what} {lacking}")
