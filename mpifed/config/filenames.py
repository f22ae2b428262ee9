"""File names made of values that a user chose."""

from __future__ import annotations

import hashlib
import re

LONGEST = 120


def safe(text: str) -> str:
    """``text`` as the name of one file: letters, digits and ``. _ = , + -``, at most ``LONGEST``.

    A text that had to be changed or cut ends in a few hexadecimal digits of its hash, so that
    different texts have different names.
    """
    name = re.sub(r"[^A-Za-z0-9._=,+-]+", "-", text).lstrip(".-")
    if name == text and len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    return f"{name[: LONGEST - 9]}-{digest}".lstrip("-")
