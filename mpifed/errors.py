"""What can go wrong, as sentences.

``InputError`` is for what the user can mend: a name, a value, a file. The run ends with exit code 2
before anything is written. ``RunError`` is everything else that mpifed recognises itself, with exit
code 1. Both carry one sentence: what was wrong, where, and what is allowed. Whatever a user, a file
or a component put into it, a message is one printable line of at most ``LONGEST`` characters.
"""

from __future__ import annotations

import difflib
import math
import sys
from collections.abc import Iterable

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_STOPPED = 75

LONGEST = 500
"""Characters of a message at most."""

GAP = " [...] "
"""What stands for the middle of a message that was longer."""


def one_line(text: str, longest: int = LONGEST) -> str:
    r"""``text`` as one printable line of at most ``longest`` characters.

    White space becomes single spaces, and what does not print becomes its escape sequence. What is
    too long loses its middle: a message begins with what was wrong and ends with what is allowed.

    Examples
    --------
    >>> one_line("a name\nwith \x1b[31mcolour")
    'a name with \\x1b[31mcolour'
    """
    if len(text) > 4 * longest:  # escapes may still lengthen it; no more is looked at
        text = text[: 2 * longest] + GAP + text[-2 * longest :]
    line = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in " ".join(text.split())
    )
    if len(line) <= longest:
        return line
    end = (longest - len(GAP)) // 3
    return line[: longest - len(GAP) - end] + GAP + line[-end:]


def text_of(error: BaseException) -> str:
    """``str(error)``, which may itself fail where the exception is a user's."""
    try:
        return str(error)
    except KeyboardInterrupt:
        raise
    except BaseException as failure:
        return f"(without a text: its __str__ raised {type(failure).__name__})"


def in_words(error: BaseException) -> str:
    """What ``error`` says, after its type; for errors that mpifed did not foresee."""
    return one_line(f"{type(error).__name__}: {text_of(error)}")


def complain(command: str, message: str) -> None:
    """Prints ``message`` on standard error, as one line of ``command``."""
    print(one_line(f"{command}: {message}"), file=sys.stderr, flush=True)


class InputError(ValueError):
    """Bad configuration or input: the field, the value given, and what is allowed."""

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


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

    def __init__(self, message: str = "") -> None:
        super().__init__(one_line(message))


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
