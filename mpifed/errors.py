"""Exceptions, exit codes and the form of messages.

``InputError`` is for what the user can correct: a name, a value, a file. The run ends with exit
code 2 before anything is written. ``RunError`` covers all other failures that mpifed recognises
itself, with exit code 1. Both carry one sentence: what was wrong, where, and what is allowed. A
message is one printable line of at most ``MESSAGE`` characters, also where a user, a file or a
component contributes text to it; with the command that has it, of ``LONGEST``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable

from topologies.inputs import LONGEST
from topologies.inputs import closest as closest_of
from topologies.inputs import one_line as one_line

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75

MESSAGE = LONGEST - 30
"""Largest length of a message; a line of ``LONGEST`` characters also names the command."""


def text_of(error: BaseException) -> str:
    """Return the text of an exception, or a substitute where its ``__str__`` fails.

    Parameters
    ----------
    error : BaseException
        Any exception, also a user's own.
    """
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        return f"(without a text: its __str__ raised {type(failure).__name__})"


def in_words(error: BaseException) -> str:
    """Return the type and text of an error that mpifed did not expect, on one line.

    Parameters
    ----------
    error : BaseException
        Any exception.

    Examples
    --------
    >>> in_words(KeyError("width"))
    "KeyError: 'width'"
    """
    import difflib  # here, since every guard would import it

    said = f"{type(error).__name__}: {text_of(error)}"
    if isinstance(error, AttributeError) and error.name and error.obj is not None:
        near = difflib.get_close_matches(error.name, object.__dir__(error.obj), n=1)
        said += f"; did you mean '{near[0]}'?" if near else ""
    return one_line(said, MESSAGE)


def complain(command: str, message: str) -> None:
    """Print a message on standard error, on one line of at most ``LONGEST`` characters.

    Parameters
    ----------
    command : str
        Name of the command, with which the line begins.
    message : str
        The message.
    """
    print(one_line(f"{command}: {message}"), file=sys.stderr, flush=True)


class InputError(ValueError):
    """A wrong configuration or input: the field, the value given, and what is allowed."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message, MESSAGE))


class AgreedInputError(InputError):
    """An ``InputError`` that every rank raises, so that one can report it and all end in order."""


class StopRequested(RuntimeError):
    """A rank was asked to stop before round 1, when there is nothing to store yet."""

    def __init__(self) -> None:
        super().__init__(
            "stopped before round 1: there is no checkpoint yet, and the next start begins again"
        )


class AgreedStop(StopRequested):
    """A ``StopRequested`` that every rank raises, so that all end in order."""


class RunError(RuntimeError):
    """A failure while running that the input did not cause (a full disk, a diverged client)."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message, MESSAGE))


class CodeError(RunError):
    """Code that failed, often a user's own; its traceback is that of ``__cause__``."""


def note(error: BaseException, text: str) -> None:
    """Add a note, which Python prints below a traceback from 3.11 on, as ``add_note`` does."""
    error.__dict__.setdefault("__notes__", []).append(text)


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


def raise_first_diverged(first: float, own: list[int], where: str) -> None:
    """Raise if a client of any rank has diverged.

    Parameters
    ----------
    first : float
        The smallest id of a diverged client of any rank; infinite if there is none.
    own : list of int
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
    if not own or own[0] != first:
        raise PeerDiverged(own)
    raise Diverged(
        f"client {own[0]} has a value in its {where} that is not finite: the training diverged",
        own,
    )


def closest(name: str, allowed: Iterable[str]) -> str:
    """Return names as a list in words, after the one that was likely meant.

    Parameters
    ----------
    name : str
        What was typed.
    allowed : iterable of str
        The names that are allowed.

    Examples
    --------
    >>> closest("fedm", ["fedem", "fedavg"])
    "did you mean 'fedem'? allowed: fedavg, fedem"
    """
    return closest_of(str(name), sorted(allowed))
