"""The exchange of algorithms that send nothing."""

from __future__ import annotations

import numpy as np

from mpifed.exchange.server import Server


class Silent(Server):
    """The exchange of an algorithm that sends nothing, whatever exchange is configured."""

    def arcs(self, round: int, active: np.ndarray, itemsize: int) -> np.ndarray:
        return np.zeros((0, 2), np.int64)

    def describe(self, payload: int, itemsize: int) -> list[str]:
        return ["exchange    none: the algorithm sends nothing, whatever the section exchange says"]
