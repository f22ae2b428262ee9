"""Plays as plain text: who speaks which lines, in the two layouts in which they are published.

``headed``, as in tiny Shakespeare (A. Karpathy): a line ``ROLE:``, the lines of the speech, an
empty line. ``indented``, as in Project Gutenberg's collected works, which LEAF and TensorFlow
Federated use: ``  ROLE. text`` after two spaces, further lines of the speech after four or more. A
new play begins there at the line "by William Shakespeare"; a play may also have no indentation.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

Layout = Literal["headed", "indented"]

HEAD = re.compile(r"([A-Za-z][^:]{0,60}):\s*")
INDENTED = re.compile(r"  ([A-Za-z][A-Za-z' ]{0,60})\. (.*)")
FLUSH = re.compile(r"([A-Z][A-Z' ]{1,60})\. (.*)")
AUTHOR = "by William Shakespeare"
ACTS = ("ACT ", "SCENE ")
STAGE = "<"
"""What notes of the publisher begin with."""


@dataclass(frozen=True)
class Speech:
    """What one role says at once.

    Attributes
    ----------
    play : int
        Number of the play in the text, from 0 on.
    role : str
        Name of the role, in capitals.
    lines : tuple of str
        The lines, without indentation.
    """

    play: int
    role: str
    lines: tuple[str, ...]


def speeches(text: str, layout: Layout | None = None) -> list[Speech]:
    r"""Return the speeches in a text, in their order.

    Parameters
    ----------
    text : str
        Plays.
    layout : {'headed', 'indented'}, optional
        How they are set. None is the layout in which more speeches are found.

    Examples
    --------
    >>> [speech.role for speech in speeches("First Witch:\nWhen shall we?\n\nAll:\nSoon.\n")]
    ['FIRST WITCH', 'ALL']
    >>> speeches("  ORSINO. If music be\n    the food of love\n")[0].lines
    ('If music be', 'the food of love')
    """
    lines = text.splitlines()
    if layout is not None:
        return _READERS[layout](lines)
    found = [read(lines) for read in _READERS.values()]
    return max(found, key=len)


def texts_of_roles(found: Iterable[Speech]) -> dict[tuple[int, str], str]:
    """Return all that each role of each play says, one line after the other, single spaces between.

    Parameters
    ----------
    found : iterable of Speech
        The speeches.

    Returns
    -------
    dict
        Texts by (play, role), in the order in which roles first speak.
    """
    lines: dict[tuple[int, str], list[str]] = {}
    for speech in found:
        lines.setdefault((speech.play, speech.role), []).extend(speech.lines)
    return {role: re.sub(" +", " ", " ".join(said)).strip() for role, said in lines.items()}


def _headed(lines: Sequence[str]) -> list[Speech]:
    found: list[Speech] = []
    said: list[str] = []
    role = before = ""
    for line in [*lines, ""]:
        head = HEAD.fullmatch(line)
        if head and not before.strip():
            role, said = head[1], []
        elif line.strip():
            said.append(line.strip())
        else:
            if role:
                found.append(Speech(0, role.upper(), tuple(said)))
            role, said = "", []
        before = line
    return found


def _indented(lines: Sequence[str]) -> list[Speech]:
    starts = [0, *(number for number, line in enumerate(lines) if AUTHOR in line), len(lines)]
    found = []
    for play, (start, end) in enumerate(pairwise(starts)):
        indented, flush = (list(_of_play(play, lines[start:end], way)) for way in (False, True))
        found += indented if len(indented) >= len(flush) else flush
    return found


def _of_play(play: int, lines: Iterable[str], flush: bool) -> Iterator[Speech]:
    """The speeches of one play, where it is indented or not (``flush``)."""
    pattern = FLUSH if flush else INDENTED
    role = ""
    said: list[str] = []
    for line in [*lines, ""]:
        begins = pattern.fullmatch(line.rstrip())
        continues = bool(line.strip()) and (flush or line.startswith("    "))
        if begins is None and role and continues and not line.startswith(STAGE):
            said.append(line.strip())
            continue
        if role:
            yield Speech(play, role.upper(), tuple(said))
        role, said = "", []
        if begins is not None and not begins[1].upper().startswith(ACTS):
            role, said = begins[1], [begins[2].strip()]


_READERS = {"headed": _headed, "indented": _indented}
