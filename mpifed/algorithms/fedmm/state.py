"""What FedMM carries from round to round."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from mpifed import state


@dataclass(frozen=True)
class FedMMState:
    """``surrogate`` S (q,), the one before it, control variates V_i (clients, q) and V (q,).

    All float64; under gossip S has a row for each client. ``previous`` is for metrics.csv;
    ``known`` are facts about the data without which the surrogate cannot compute.
    """

    surrogate: Tensor = state.shared()
    previous: Tensor = state.follows()
    variates: Tensor = state.client()
    variate: Tensor = state.server()
    known: Any = field(default_factory=state.Nothing, metadata={"owner": "server"})
