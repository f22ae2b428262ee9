"""Names that were likely meant where another was typed."""

from __future__ import annotations

from collections.abc import Iterable

# Smallest similarity, by difflib's measure, of a name that is suggested.
ALIKE = 0.6

# Letters of a name from which on it is taken for the beginning of another.
BEGUN = 3


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that ``name`` was likely meant to be; None if none is alike."""
    import difflib  # here, since every guard would import it

    names, letters = list(known), sorted(name)
    swapped = [each for each in names if sorted(each) == letters]
    begun = [each for each in names if len(name) >= BEGUN and each.startswith(name)]
    return next(iter(swapped or difflib.get_close_matches(name, names, 1, ALIKE) or begun), None)
