"""No predictor, for algorithms that train something else."""

from __future__ import annotations

from dataclasses import dataclass

from mpifed.data.base import Description
from mpifed.models.base import Parametrised


@dataclass(frozen=True)
class NoModel(Parametrised):
    """A model without parameters, which predicts nothing."""

    data: Description

    @property
    def n_parameters(self) -> int:
        """Always 0."""
        return 0


def none(data: Description) -> NoModel:
    """No predictor, for algorithms such as fedmm that train something else."""
    return NoModel(data)
