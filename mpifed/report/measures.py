"""What is measured beside training losses and test accuracies: how it is called and drawn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpifed.report.columns import MEASURES
from mpifed.report.groups import Group

CAPTION = "At the last evaluated round, mean over seeds. ± is the standard deviation over seeds."


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
