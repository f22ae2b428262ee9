"""Methods compared seed by seed, the rounds to an accuracy, and contractions of gossip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce

import numpy as np

from mpifed.report.groups import Curve, Group
from mpifed.report.intervals import mean_and_deviation
from mpifed.report.runs import ACCURACY, Run

DISTANCE = "consensus_distance"
# Relative to the first distance: below it, float32 rounding is as large as the contraction.
ROUNDING = 1e-12


def pairs(group: Group, other: Group) -> list[tuple[Run, Run]]:
    """Return the runs of two methods that have the same seed."""
    partners = {str(run.seed): run for run in other.runs}
    return [(run, partners[str(run.seed)]) for run in group.runs if str(run.seed) in partners]


def difference(group: Group, other: Group, column: str, factor: float = 1.0) -> Curve:
    """Return a column of one method minus that of another, over the seeds that both have run."""
    paired = pairs(group, other)
    rounds, values = _differences(paired, column)
    if not len(rounds):
        return Curve(rounds, rounds, rounds, rounds)
    values = values * factor
    sent = [_at(run, "up_bits", rounds) + _at(run, "down_bits", rounds) for run, _ in paired]
    deviation = values.std(axis=0, ddof=1) if len(paired) > 1 else np.zeros(len(rounds))
    return Curve(rounds, np.mean(sent, axis=0), values.mean(axis=0), deviation)


def last_differences(group: Group, other: Group, column: str) -> np.ndarray:
    """Return a column's differences at the last round that all paired runs have, (pairs,)."""
    rounds, values = _differences(pairs(group, other), column)
    return values[:, -1] if len(rounds) else np.zeros(0)


def _differences(paired: Sequence[tuple[Run, Run]], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds that all runs have, and the differences, (pairs, rounds)."""
    evaluated = [run.metrics["round"] for pair in paired for run in pair]
    rounds = reduce(np.intersect1d, evaluated) if evaluated else np.zeros(0)
    return rounds, np.array([_at(a, column, rounds) - _at(b, column, rounds) for a, b in paired])


def _at(run: Run, column: str, rounds: np.ndarray) -> np.ndarray:
    return run.metrics[column][np.isin(run.metrics["round"], rounds)]


def partner(groups: Sequence[Group], data: str, method: str | None) -> Group | None:
    """Return the group of a method on a data set."""
    return next((g for g in groups if (g.data, g.method) == (data, method)), None)


def reached(run: Run, target: float) -> tuple[float, float]:
    """Return the round and bits where the test accuracy first was at least ``target``."""
    hits = np.flatnonzero(run.metrics[ACCURACY] >= target)
    if not len(hits):
        return math.nan, math.nan
    return float(run.metrics["round"][hits[0]]), float(run.metrics["up_bits"][hits[0]])


def contraction(run: Run) -> float:
    """Return the measured factor per round on the squared distance from consensus."""
    rounds, distances = run.metrics["round"], run.metrics[DISTANCE]
    apart = np.flatnonzero(distances > 0)
    if not len(apart):
        return math.nan
    first = apart[0]
    low = np.flatnonzero(distances <= ROUNDING * distances[first])
    low = low[low > first]
    end = low[0] + 1 if len(low) else len(distances)
    last = first + int(np.nanargmin(distances[first:end]))
    if last == first:
        return math.nan
    ratio = float(distances[last] / distances[first])
    return ratio ** (1 / float(rounds[last] - rounds[first]))


def contractions(group: Group) -> list[float]:
    """Return a group's predicted and measured factor per round, and its last distance."""
    predicted = np.array([run.predicted.get("per_round", math.nan) for run in group.runs])
    return [
        mean_and_deviation(predicted)[0],
        mean_and_deviation(np.array([contraction(run) for run in group.runs]))[0],
        group.mean_and_deviation(DISTANCE)[0],
    ]
