"""The consensus distance of gossip: the predicted contraction and the measured one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from mpifed.report.groups import Group, mean_and_deviation
from mpifed.report.reading import Run

DISTANCE = "consensus_distance"
COLUMNS = ("predicted_contraction", "measured_contraction", DISTANCE)
CAPTION = (
    "Consensus: the distance is (1/n) Σ ‖x_t − x̄‖² over clients, at the last evaluated round. "
    "Predicted is (1 − p)^(1/τ), what a round leaves of it at most, on average, where clients only "
    "average. Measured is (d_k/d_j)^(1/(k − j)) from the first evaluated round j with a distance "
    "to the round k with the least. Local steps feed the distance in every round, so a run that "
    "trains comes to rest above zero, and measures more than is predicted."
)
# Relative to the first distance: below it, float32 rounding is as large as the contraction.
ROUNDING = 1e-12


def measured(run: Run) -> float:
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


def numbers(group: Group) -> list[float]:
    """Return the values of ``COLUMNS`` for a group."""
    predicted = np.array([run.predicted.get("per_round", math.nan) for run in group.runs])
    return [
        mean_and_deviation(predicted)[0],
        mean_and_deviation(np.array([measured(run) for run in group.runs]))[0],
        group.mean_and_deviation(DISTANCE)[0],
    ]


def gossiped(groups: Sequence[Group]) -> list[Group]:
    """Return the groups whose runs have a distance from consensus."""
    return [group for group in groups if not math.isnan(numbers(group)[-1])]


def rows(groups: Sequence[Group]) -> list[list[str]]:
    """Return the rows of the consensus table, as ``HEADER`` names their cells."""
    found = []
    for group in gossiped(groups):
        rates = [run.predicted for run in group.runs if run.predicted]
        p = mean_and_deviation(np.array([rate["p"] for rate in rates]))[0]
        taus = sorted({int(rate["tau"]) for rate in rates})
        tau = "-".join(map(str, taus)) if taus else "–"
        found.append([*group.words, _short(p), tau, *map(_short, numbers(group))])
    return found


HEADER = ["Data", "Method", "p", "τ", "Predicted per round", "Measured per round", "Distance"]


def _short(value: float) -> str:
    return "–" if math.isnan(value) else f"{value:.4g}"
