"""Comparison of the memory that a run needs with the memory that is available."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from mpifed.errors import InputError, one_line
from topologies.memory_limits import check_memory as check_memory

# Parts of the messages with which torch and numpy refuse an array without a ``MemoryError``.
TOO_LARGE = (
    *("can't allocate", "not enough memory", "storage size"),
    *("array is too big", "maximum allowed dimension"),
)


@contextlib.contextmanager
def enough_memory(what: str) -> Iterator[None]:
    """Turn a failed allocation within the block into an ``InputError``."""
    try:
        yield
    except (MemoryError, OverflowError, RuntimeError, ValueError) as error:
        foreseen = isinstance(error, (MemoryError, OverflowError))
        if not foreseen and not any(words in str(error).lower() for words in TOO_LARGE):
            raise
        raise InputError(
            f"there is not enough memory for {what}: {one_line(str(error), 200)}"
        ) from None
