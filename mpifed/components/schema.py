"""Options of components, read from their signatures by ``topologies.schema``."""

from __future__ import annotations

from functools import partial

from mpifed.errors import InputError
from topologies import schema
from topologies.schema import LARGEST, ComponentOf, describe, options_of, plain_value, shown
from topologies.schema import Parameter as Option

__all__ = [
    "LARGEST",
    "ComponentOf",
    "Option",
    "check_options",
    "check_value",
    "describe",
    "options_of",
    "plain_value",
    "shown",
]

check_options = partial(schema.check_options, error=InputError)
check_value = partial(schema.check_value, error=InputError)
