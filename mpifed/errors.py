"""What can go wrong, as sentences.

``InputError`` is for what the user can mend: a name, a value, a file. The run ends with exit code 2
before anything is written. ``RunError`` is everything else that mpifed recognises itself, with exit
code 1. Both carry one sentence: what was wrong, where, and what is allowed.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75


class InputError(ValueError):
    """Bad configuration or input: the field, the value given, and what is allowed."""


class AgreedInputError(InputError):
    """An ``InputError`` that every rank raises, so that one may report it and all end in order."""


class StopRequested(RuntimeError):
    """A rank has been asked to stop before round 1, when there is nothing to keep yet."""

    def __init__(self) -> None:
        super().__init__(
            "stopped before round 1: there is no checkpoint yet, and the next start begins again"
        )


class AgreedStop(StopRequested):
    """A ``StopRequested`` that every rank raises, so that all end in order."""


class RunError(RuntimeError):
    """A failure while running that is not the input's fault (a full disk, a diverged client)."""


class PeerFailure(RuntimeError):
    """Another rank has failed and reports it; this one has nothing to add."""


class Diverged(RunError):
    """Clients of this rank whose numbers are no longer finite, ascending."""

    def __init__(self, message: str, clients: list[int]) -> None:
        super().__init__(message)
        self.clients = clients


class PeerDiverged(PeerFailure):
    """A client of another rank has diverged; ``clients`` are those of this rank that did too."""

    def __init__(self, clients: list[int]) -> None:
        super().__init__()
        self.clients = clients


def raise_first_diverged(first: float, own: list[int], where: str) -> None:
    """Raises if ``first``, the least client of any rank that diverged, is one; infinity is none.

    ``own`` are those of this rank, ascending; ``where`` says what of them is not finite. Raises
    ``Diverged``, which names the client, on the rank that hosts it, and ``PeerDiverged`` elsewhere.
    """
    if not math.isfinite(first):
        return
    if not own or own[0] != first:
        raise PeerDiverged(own)
    raise Diverged(
        f"client {own[0]} has a value in its {where} that is not finite: the training diverged",
        own,
    )


def closest(name: str, allowed: Iterable[str]) -> str:
    """``allowed`` as a list in words, beginning with the closest name to ``name`` if there is
    one.
    """
    names = sorted(allowed)
    near = difflib.get_close_matches(str(name), names, n=1, cutoff=0.5)
    listing = ", ".join(names)
    return f"did you mean '{near[0]}'? allowed: {listing}" if near else f"allowed: {listing}"
