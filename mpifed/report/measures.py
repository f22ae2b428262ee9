"""What is measured beside training losses and test accuracies: how it is called and drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mpifed.report.groups import Group

CAPTION = "At the last evaluated round, mean over seeds. ± is the standard deviation over seeds."


@dataclass(frozen=True)
class Measure:
    """``title`` stands above a figure, ``short`` in a table; ``log`` is the axis of the figure."""

    title: str
    short: str
    log: bool = True


MEASURES = {
    "validation_loss": Measure("Validation loss, average over clients", "Validation loss"),
    "validation_accuracy": Measure(
        "Validation accuracy, average over clients", "Validation accuracy", log=False
    ),
    "validation_recall_at_5": Measure(
        "Validation recall at 5, over all clients", "Validation recall at 5", log=False
    ),
    "objective": Measure("Objective on the training data", "Objective"),
    "test_objective": Measure("Objective on the test data", "Test objective"),
    "surrogate_update": Measure("Squared update of surrogates, over γ²", "Surrogate update"),
    "parameter_update": Measure("Squared update of parameters, over γ²", "Parameter update"),
    "l2_uvp": Measure("L2-UVP: unexplained variance of the map (%)", "L2-UVP (%)"),
    "cosine": Measure("Cosine of the map with the optimal one", "Cosine", log=False),
}
"""By their columns in metrics.csv."""


def measured(groups: Sequence[Group]) -> list[str]:
    """The columns of ``MEASURES`` that any of the runs has numbers in."""
    runs = [run for group in groups for run in group.runs]
    return [
        column for column in MEASURES if any(np.isfinite(run.metrics[column]).any() for run in runs)
    ]


def cell(group: Group, column: str) -> str:
    """Mean and deviation of the last values, as words for a table."""
    mean, deviation = group.mean_and_deviation(column)
    if np.isnan(mean):
        return "–"
    return f"{mean:.4g}" + ("" if np.isnan(deviation) else f" ± {deviation:.2g}")


def rows(groups: Sequence[Group]) -> list[list[str]]:
    """Data, method and every measure, as words for a table."""
    columns = measured(groups)
    return [
        [group.data, group.method, *(cell(group, column) for column in columns)] for group in groups
    ]


def header(groups: Sequence[Group]) -> list[str]:
    """The header of ``rows``."""
    return ["Data", "Method", *(MEASURES[column].short for column in measured(groups))]
