"""Exceptions and exit codes.

``InputError`` is for what the user can correct: a name, a value, a file. The run ends with exit
code 2 before anything is written. ``RunError`` covers all other failures that mpifed recognises
itself, with exit code 1. Both carry one sentence: what was wrong, where, and what is allowed.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable

from topologies import errors
from topologies.errors import InputError as InputError
from topologies.errors import RunError as RunError
from topologies.errors import excerpt as excerpt

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75


def one_line(text: str, longest: int = 200) -> str:
    """Return a foreign text for a message: its beginning, on one printable line."""
    return "".join(each if each.isprintable() else " " for each in text[:longest])


def printable(text: str) -> str:
    """Return a user's text with codes in place of signs that steer a terminal or the order of text.

    Those that only join letters stay, and any space is a space.
    """
    import unicodedata  # here, since every guard would import it

    return "".join(
        sign if sign.isprintable() or sign in "\u200c\u200d"
        else " " if unicodedata.category(sign) == "Zs"
        else sign.encode("unicode_escape").decode()
        for sign in text
    )  # fmt: skip


def printable_lines(text: str) -> str:
    """Return a user's text as ``printable`` does, with its lines."""
    return "\n".join(map(printable, text.split("\n")))


def in_words(error: BaseException) -> str:
    """Return the type and text of an error that mpifed did not expect."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def complain(command: str, message: str) -> None:
    """Print a message on standard error, and the traceback of code whose failure is handled."""
    print(f"{command}: {printable_lines(message)}", file=sys.stderr, flush=True)
    error = sys.exc_info()[1]
    foreseen = (InputError, RunError, StopRequested, PeerFailure, KeyboardInterrupt, OSError)
    if isinstance(error, CodeError) and os.environ.get("MPIFED_DEBUG") != "1":
        error = error.__cause__
    elif isinstance(error, foreseen) and os.environ.get("MPIFED_DEBUG") != "1":
        return
    if error is not None:
        import traceback  # here, since every guard would import it

        traceback.print_exception(error)


class AgreedInputError(InputError):
    """An ``InputError`` that every rank raises, so that one can report it and all end in order."""


class StopRequested(RuntimeError):
    """A rank was asked to stop before round 1, when there is nothing to store yet."""

    def __init__(
        self,
        message: str = "stopped before round 1: there is no checkpoint yet, and the next start "
        "begins again",
    ) -> None:
        super().__init__(message)


class AgreedStop(StopRequested):
    """A ``StopRequested`` that every rank raises, so that all end in order."""


class CodeError(RunError):
    """Code that failed, often a user's own; its traceback is that of ``__cause__``."""


def note(error: BaseException, text: str) -> None:
    """Add a note, which Python prints below a traceback from 3.11 on, as ``add_note`` does."""
    error.__dict__.setdefault("__notes__", []).append(text)


def wrong_result(component: object, method: str, returned: str, expected: str) -> RunError:
    """Return the error for what a component's method returned, which no traceback explains."""
    name = f"{type(component).__module__}:{type(component).__qualname__}"
    return RunError(f"{name}: {method} returned {returned}; it must return {expected}")


class PeerFailure(RuntimeError):
    """Another rank has failed and reports it; this rank reports nothing."""


class Diverged(RunError):
    """Clients of this rank have values that are not finite.

    Attributes
    ----------
    clients : list of int
        Ids of these clients, ascending; empty where the server's state diverged.
    """

    def __init__(self, message: str, clients: list[int]) -> None:
        super().__init__(message)
        self.clients = clients


class PeerDiverged(PeerFailure):
    """A client of another rank has diverged.

    Attributes
    ----------
    clients : list of int
        Ids of the clients of this rank that diverged too, ascending.
    """

    def __init__(self, clients: list[int]) -> None:
        super().__init__()
        self.clients = clients


def raise_first_diverged(first: float, diverged: list[int], where: str) -> None:
    """Raise if a client of any rank has diverged.

    Parameters
    ----------
    first : float
        The smallest id of a diverged client of any rank; infinite if there is none.
    diverged : list of int
        Ids of the diverged clients of this rank, ascending.
    where : str
        The part of the client's state that is not finite, for the message.

    Raises
    ------
    Diverged
        On the rank that hosts client ``first``; the message names it.
    PeerDiverged
        On all other ranks.
    """
    if not math.isfinite(first):
        return
    if not diverged or diverged[0] != first:
        raise PeerDiverged(diverged)
    raise Diverged(
        f"client {diverged[0]} has a value in its {where} that is not finite: the training "
        "diverged",
        diverged,
    )


def closest(name: str, allowed: Iterable[str]) -> str:
    """Return the allowed names as the end of a message, after the one that was likely meant."""
    return errors.closest(str(name), sorted(allowed))
