"""When a run ends before its last round, and which evaluated round is its best so far."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from mpifed.config.options import Condition
from mpifed.errors import InputError, closest
from mpifed.results.results import DIGEST, larger_is_better
from mpifed.training.setup import Setup

COMPARISONS: Mapping[str, Callable[[Any, Any], Any]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}


class Decision(NamedTuple):
    """Why a run stops at an evaluated round, if it does, and whether that is stored as the best."""

    reason: str | None
    stores: bool


@dataclass
class Stopping:
    """What rank 0 knows of the scores so far; its decisions are a function of metrics.csv.

    Parameters
    ----------
    condition : Condition, optional
        The run stops where it holds.
    column : str, optional
        The column whose best round counts.
    patience : int, optional
        The run stops after as many evaluations without a better value.
    stores_best : bool
        Whether the best round gets a checkpoint that is kept.
    """

    condition: Condition | None = None
    column: str | None = None
    patience: int | None = None
    stores_best: bool = False
    best: float | None = None
    best_round: int | None = None
    since: int = 0
    """Evaluations after the best one."""

    @property
    def stored_round(self) -> int | None:
        """The round whose checkpoint is kept whatever its age."""
        return self.best_round if self.stores_best else None

    def take(self, row: Mapping[str, Any]) -> bool:
        """Take a row of metrics.csv; return whether it has the best value so far."""
        value = row.get(self.column) if self.column is not None else None
        if value is None or np.isnan(value):
            return False
        if self.best is not None:
            better = operator.gt if larger_is_better(str(self.column)) else operator.lt
            if not better(value, self.best):
                self.since += 1
                return False
        self.best, self.best_round, self.since = float(value), int(row["round"]), 0
        return True

    def decide(self, row: Mapping[str, Any], by_function: bool) -> Decision:
        """Return what follows from a row; ``by_function`` is whether on_round asked for a stop."""
        stores = self.take(row) and self.stores_best
        reason = None
        if self.condition is not None:
            column, sign, bound = self.condition
            value = row.get(column)
            if value is not None and COMPARISONS[sign](value, bound):
                reason = f"{column} is {value:g}, and evaluation.stop_at is {column}{sign}{bound:g}"
        if reason is None and self.patience is not None and self.since >= self.patience:
            reason = (
                f"{self.column} has not been better than {self.best:g}, of round "
                f"{self.best_round}, in {self.since} evaluations (evaluation.patience)"
            )
        if reason is None and by_function:
            reason = "on_round returned True"
        return Decision(reason, stores)


def stopping_of(setup: Setup, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Stopping:
    """Return what a run with these ``rows`` of metrics.csv is stopped by."""
    evaluation, best = setup.evaluation, setup.checkpoint.best
    column = best or (default_column(setup) if evaluation.patience is not None else None)
    stopping = Stopping(evaluation.condition, column, evaluation.patience, best is not None)
    for row in rows:
        texts = dict(zip(columns, row, strict=True))
        value = texts.get(column, "") if column is not None else ""
        if value:
            stopping.take({"round": texts["round"], str(column): float(value)})
    return stopping


def default_column(setup: Setup) -> str:
    """Return the validation score that ``evaluation.patience`` is about."""
    return f"validation_{'accuracy' if setup.model.loss.measure == 'accuracy' else 'loss'}"


def check_columns(setup: Setup, columns: Sequence[str]) -> None:
    """Refuse options that name a column which metrics.csv of the run will not have."""
    condition, best = setup.evaluation.condition, setup.checkpoint.best
    patience = setup.evaluation.patience
    named = {"evaluation.stop_at": condition.column if condition is not None else None}
    named["checkpoint.best"] = best
    if patience is not None and best is None:
        named["evaluation.patience"] = default_column(setup)
    for key, column in named.items():
        if column is not None:
            check_column(key, column, setup, columns)


def check_column(key: str, column: str, setup: Setup, columns: Sequence[str]) -> None:
    """Refuse an option that names a column which metrics.csv of the run will not have."""
    numbers = [each for each in columns if each != DIGEST]
    if column in numbers:
        return
    hint = f"; {closest(column, numbers)}"
    if column.startswith("validation_") and not setup.evaluation.validates:
        hint = " without evaluation.validation_fraction=0.2 or evaluation.validation_split=true"
    raise InputError(
        f"{key} is of the column '{column}', which metrics.csv of this run does not have{hint}"
    )
