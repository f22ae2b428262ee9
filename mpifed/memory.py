"""What is asked for, compared with the memory that there is."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mpifed.errors import InputError, one_line

TOO_LARGE = (
    *("can't allocate", "not enough memory", "storage size"),
    *("array is too big", "maximum allowed dimension"),
)
"""What torch and numpy say where they have no exception of their own for it."""


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
    >>> check_memory(1e18, "clients is 10**15, which")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    mpifed.errors.InputError: clients is 10**15, which needs 1 EB of memory, ...
    """
    from topologies.inputs import beyond_memory

    lacking = beyond_memory(needed)
    if lacking is not None:
        raise InputError(f"{what} {lacking}")


@contextlib.contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Turns a failure to get memory for ``what`` within the block into an ``InputError``."""
    try:
        yield
    except (MemoryError, RuntimeError, ValueError, OverflowError) as error:
        words = str(error).lower()
        if isinstance(error, InputError) or not (
            isinstance(error, (MemoryError, OverflowError)) or any(w in words for w in TOO_LARGE)
        ):
            raise
        raise InputError(
            f"there is not enough memory for {what}: {one_line(str(error), 200)}"
        ) from None
