"""Names that were likely meant where another was typed."""

from __future__ import annotations

from collections.abc import Iterable

# Smallest similarity, by difflib's measure, of a name that is suggested.
ALIKE = 0.6

# Names that users give to what is called otherwise.
SYNONYMS = {"gpu": "cuda"}

# Letters of a name from which on it is taken for the beginning of another.
BEGUN = 3


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` was likely meant to be; None if none is alike."""
    import difflib  # here, since every guard would import it

    names, letters = list(known), sorted(name)
    if SYNONYMS.get(name.lower()) in names:
        return SYNONYMS[name.lower()]
    swapped = [each for each in names if sorted(each) == letters]
    begun = [each for each in names if len(name) >= BEGUN and each.startswith(name)]
    return next(iter(swapped or difflib.get_close_matches(name, names, 1, ALIKE) or begun), None)


def closest(name: str, known: Iterable[str]) -> str:
    """Return the allowed names as the end of a message, after the one that was likely meant."""
    names = list(known)
    meant = nearest(name, names)
    near = f"did you mean {meant!r}? " if meant else ""
    return f"{near}allowed: {', '.join(names)}"
