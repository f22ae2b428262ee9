"""No predictor, for algorithms that train something else."""

from __future__ import annotations

from dataclasses import dataclass

from mpifed.data.base import Description


@dataclass(frozen=True)
class NoModel:
    """A model without parameters; nothing is predicted. ``data`` is what there is to learn from."""

    data: Description
    n_parameters: int = 0


def none(data: Description) -> NoModel:
    """No predictor: what fedmm and its kin train is an algorithm's own."""
    return NoModel(data)
