"""The table of measures other than training losses and test accuracies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpifed.report.columns import MEASURES
from mpifed.report.groups import Group

CAPTION = "At the last evaluated round, mean over seeds."


def measured(groups: Sequence[Group]) -> list[str]:
    """Return the columns of ``MEASURES`` in which any run has numbers."""
    runs = [run for group in groups for run in group.runs]
    return [
        column for column in MEASURES if any(np.isfinite(run.metrics[column]).any() for run in runs)
    ]


def cell(group: Group, column: str) -> str:
    """Return mean and interval of the last values as a table cell."""
    if MEASURES[column].factor == 100:
        return group.estimate(column, 100).text(".2f")
    return group.estimate(column).text(".4g", ".2g")


def rows(groups: Sequence[Group]) -> list[list[str]]:
    """Return the rows of the table: data, method and every measure."""
    columns = measured(groups)
    return [[*group.words, *(cell(group, column) for column in columns)] for group in groups]


def header(groups: Sequence[Group]) -> list[str]:
    """Return the header of ``rows``."""
    return ["Data", "Method", *(MEASURES[column].short for column in measured(groups))]
