"""Messages on one printable line, short enough to be read."""

from __future__ import annotations

# Largest length of a message, in characters.
LONGEST = 500

# Replaces the middle of a word.
CUT = "[...]"

# Replaces words in the middle of a text.
GAP = f" {CUT} "

# Characters of a word, and of a text in quotes, up to which they are left whole if others can be
# shortened; no sentence of ours has such words.
LONG_WORD, LONG_QUOTE = 64, 100

# A list of eight items or more, without what may follow it as in ", or a path".
LISTED = r"(?:[^\s,;]+, ){7,}(?!or\b|and\b)[^\s,;]+"

# A text in quotes, which are not those of words such as isn't.
QUOTED = r"""(?<!\w)(['"])((?:(?!\1(?:[\s;,.:)\]}]|$)).)+)\1(?=[\s;,.:)\]}]|$)"""


def one_line(text: str, longest: int = LONGEST) -> str:
    r"""Return ``text`` as one printable line."""
    if len(text) > 4 * longest:  # escapes may still lengthen it; the rest is not needed
        text = _both(text[: 2 * longest], text[-2 * longest :])
    line = "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii")
        for c in " ".join(text.split())
    )
    for shortened in (_with_shorter_words, _with_shorter_quotes, _with_shorter_lists, _ends):
        if len(line) <= longest:
            break
        line = shortened(line, longest)
    return line


def _both(begin: str, end: str) -> str:
    """Return the beginning and the end of a longer text, joined between two words if there are."""
    if " " not in begin[-LONG_WORD:] or " " not in end[:LONG_WORD]:
        return begin + CUT + end
    begin, end = begin.rpartition(" ")[0], end.partition(" ")[2]
    return begin + (f" {CUT}, " if begin.endswith(",") else GAP) + end


def _with_shorter_words(line: str, longest: int) -> str:
    words, least = line.split(" "), min(LONG_WORD, longest // 2)
    excess = len(line) - longest
    for place in sorted(range(len(words)), key=lambda place: -len(words[place])):
        long = len(words[place])
        if excess <= 0 or long <= least:
            break
        kept = max(least, long - excess) - len(CUT)
        words[place] = words[place][: kept // 2] + CUT + words[place][long - (kept - kept // 2) :]
        excess -= long - len(words[place])
    return " ".join(words)


def _with_shorter_quotes(line: str, longest: int) -> str:
    import re  # here, since every guard would import it

    least, found = min(LONG_QUOTE, longest // 2), list(re.finditer(QUOTED, line))
    for quote in sorted(found, key=lambda quote: len(quote[2]), reverse=True):
        excess, given = len(line) - longest, quote[2]
        if excess <= 0 or len(given) <= least:
            break
        line = line.replace(given, _ends(given, max(least, len(given) - excess)), 1)
    return line


def _with_shorter_lists(line: str, longest: int) -> str:
    import re

    for listed in sorted(re.findall(LISTED, line), key=len, reverse=True):
        excess = len(line) - longest
        if excess <= 0:
            break
        line = line.replace(listed, _fewer(listed.split(", "), len(listed) - excess), 1)
    return line


def _fewer(items: list[str], room: int) -> str:
    """Return a list without items in its middle, in ``room`` characters if two fit into it."""
    text = ", ".join(items)
    for left in range(len(items) - 1, 1, -1):
        if len(text) <= room:
            break
        begin, hidden, end = left - left // 2, len(items) - left, len(items) - left // 2
        said = CUT if CUT in items[begin:end] else f"[{hidden} more]"
        text = ", ".join([*items[:begin], said, *items[end:]])
    return text


def _ends(text: str, longest: int) -> str:
    """Return a text without words in its middle; all that follows its last semicolon stays."""
    room = longest - len(GAP)
    last = len(text) - text.rfind("; ") - 2
    after = max(room // 3, last if last <= 2 * room // 3 else 0)
    begin, end = text[: room - after], text[len(text) - after :]
    if text[len(begin)] != " ":
        begin = begin.rpartition(" ")[0] or begin
    if text[-len(end) - 1] != " ":
        end = end.partition(" ")[2] or end
    return begin.rstrip() + GAP + end.lstrip()
