"""File names from values that a user chose."""

from __future__ import annotations

import hashlib
import re

LONGEST = 120


def safe(text: str) -> str:
    """Return a text as the name of one file.

    A text that had to be changed or cut ends in 8 hexadecimal digits of its SHA-256, so that
    different texts have different names.

    Parameters
    ----------
    text : str
        Any text.

    Returns
    -------
    str
        Letters, digits and ``. _ = , + -``, at most ``LONGEST`` characters.

    Examples
    --------
    >>> safe("seed=1,local.lr=0.1")
    'seed=1,local.lr=0.1'
    >>> safe("data=../a b")
    'data=..-a-b-373844b8'
    """
    name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", text).lstrip(".-")
    if name == text and len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9]}-{digest}".lstrip("-")
