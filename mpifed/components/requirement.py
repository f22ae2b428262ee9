"""What a component needs of the other values of a configuration."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Not:
    """All values but one; ``Not(None)`` is every value but an empty one."""

    value: Any


class Only:
    """The options of a section that may be set; all others must have their defaults.

    Parameters
    ----------
    *options : str
        Their names.
    """

    def __init__(self, *options: str) -> None:
        self.options = options


@dataclasses.dataclass(frozen=True)
class Requirement:
    """Where all of ``when`` holds, all of ``needs`` must hold.

    Keys are dotted, as on the command line; ``algorithm:communicates`` is an attribute that the
    component's class declares. A value is one value, a tuple of them, ``Not``, a bound such as
    ``Gt(0)``, a function of the configuration that returns one of these, or for a section
    ``Only``. A key that the configuration does not have, or leaves empty, is never in the way; one
    that no section, option or class declares, such as a misspelt one, raises ``ValueError``.

    Attributes
    ----------
    needs : mapping
        What must hold.
    why : str
        The reason, as the end of a sentence that begins with the component.
    when : mapping
        What else must hold for it to be needed.

    Examples
    --------
    >>> Requirement({"participation": 1.0}, "whose clients all move in every round").needs
    {'participation': 1.0}
    """

    needs: Mapping[str, Any]
    why: str
    when: Mapping[str, Any] = dataclasses.field(default_factory=dict)
