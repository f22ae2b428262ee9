"""The method of docs/local_steps.md, from the page as it stands, as a module that can be named."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType

import numpy as np

from mpifed.exchange.server import Server
from mpifed.federation.clients import Draws

PAGE = Path(__file__).parents[2] / "docs" / "local_steps.md"
TEXT = PAGE.read_text(encoding="utf-8")
(BLOCK,) = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def _loaded(name: str, text: str) -> type:
    module = ModuleType(f"documented_{name}")
    sys.modules[module.__name__] = module
    exec(compile(text, str(PAGE), "exec"), module.__dict__)
    return getattr(module, name)


Scaffold = _loaded("Scaffold", BLOCK)


def path_of(method: type) -> str:
    """The value of ``algorithm.name``."""
    return f"{method.__module__}:{method.__name__}"


def after(algorithm, clients, rounds: int, dtype):
    """The state after some rounds in which all clients take part, under a server."""
    exchange = Server(clients.federation, 0)
    state = algorithm.init(clients, exchange, Draws(0, 0), dtype)
    for round in range(1, rounds + 1):
        channel = exchange.at(round, np.ones(len(clients), bool))
        state = algorithm.round(state, clients, channel, Draws(0, round))
    return state
