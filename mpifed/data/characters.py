"""Texts as numbers: vocabularies of characters."""

from __future__ import annotations

import string
from typing import Literal

import numpy as np

from mpifed.errors import InputError

Vocabulary = Literal["printable", "leaf"]

VOCABULARIES: dict[str, str] = {
    "printable": string.printable,
    "leaf": "\n !\"&'(),-."
    + string.digits
    + ":;>?"
    + string.ascii_uppercase
    + "[]"
    + string.ascii_lowercase
    + "}",
}
"""``printable``: 100 ASCII characters, in Python's order, as in the published code of Marfoq et al.
2021. ``leaf``: the 80 of LEAF's Shakespeare (Caldas et al. 2018) and of the paper."""

UNKNOWN = 255
"""Marks a character that a vocabulary does not have."""


def codes(text: str, vocabulary: str) -> np.ndarray:
    """Return the place of each character of ``text`` in ``vocabulary``, uint8 (characters,).

    Characters that it does not have are ``UNKNOWN``.

    Examples
    --------
    >>> codes("cab?", "abc").tolist()
    [2, 0, 1, 255]
    """
    if len(vocabulary) > UNKNOWN:
        raise InputError(f"a vocabulary has {len(vocabulary)} characters; at most {UNKNOWN}")
    known = np.array([ord(character) for character in vocabulary], np.int64)
    table = np.full(known.max() + 2, UNKNOWN, np.uint8)
    table[known] = np.arange(len(known))
    points = np.frombuffer(text.encode("utf-32-le", "surrogatepass"), "<u4").astype(np.int64)
    return table[np.minimum(points, len(table) - 1)]
