"""No predictor, for algorithms that train something else."""

from __future__ import annotations

from dataclasses import dataclass

from mpifed.data.base import Description
from mpifed.models.base import Parametrised


@dataclass(frozen=True)
class NoModel(Parametrised):
    """A model without parameters; nothing is predicted. ``data`` is what there is to learn from."""

    data: Description

    @property
    def n_parameters(self) -> int:
        return 0


def none(data: Description) -> NoModel:
    """No predictor: what fedmm and its kin train is an algorithm's own."""
    return NoModel(data)
