"""Paired comparison of methods by seed, and the rounds and bits each took to reach an accuracy."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from functools import reduce

import numpy as np

from mpifed.errors import InputError, closest
from mpifed.report.groups import Curve, Group, mean_and_deviation
from mpifed.report.intervals import MEANING, estimate
from mpifed.report.reading import Run
from mpifed.report.tables import ACCURACY, DECILE, markdown_header, markdown_row
from mpifed.report.units import bits
from mpifed.report.words import in_words


def minus(group: Group, other: Group, column: str, factor: float = 1.0) -> Curve:
    """Return a column of one group minus that of another, over the seeds that both have run."""
    pairs = _pairs(group, other)
    rounds, values = _differences(pairs, column)
    if not len(rounds):
        return Curve(rounds, rounds, rounds, rounds)
    values = values * factor
    sent = [_at(run, "up_bits", rounds) + _at(run, "down_bits", rounds) for run, _ in pairs]
    deviation = values.std(axis=0, ddof=1) if len(pairs) > 1 else np.zeros(len(rounds))
    return Curve(rounds, np.mean(sent, axis=0), values.mean(axis=0), deviation)


def last_difference(group: Group, other: Group, column: str) -> tuple[float, float]:
    """Return mean and sample deviation of the last value of :func:`minus`."""
    values = last_differences(group, other, column)
    if not len(values):
        return np.nan, np.nan
    return float(values.mean()), np.nan if len(values) < 2 else float(values.std(ddof=1))


def last_differences(group: Group, other: Group, column: str) -> np.ndarray:
    """Return the differences of a column at the last round that both methods have with
    every seed.
    """
    rounds, values = _differences(_pairs(group, other), column)
    return values[:, -1] if len(rounds) else np.zeros(0)


def reached(run: Run, target: float) -> tuple[float, float]:
    """Return where the test accuracy first was at least ``target``."""
    hits = np.flatnonzero(run.metrics[ACCURACY] >= target)
    if not len(hits):
        return np.nan, np.nan
    return float(run.metrics["round"][hits[0]]), float(run.metrics["up_bits"][hits[0]])


def partner(groups: Sequence[Group], data: str, method: str) -> Group | None:
    """Return the group of a method on a data set."""
    methods = {group.method for group in groups}
    if method not in methods:
        raise InputError(
            f"--against is '{method}', which is none of the methods; {closest(method, methods)}"
        )
    return next((g for g in groups if (g.data, g.method) == (data, method)), None)


def markdown(groups: Sequence[Group], against: str | None, target: float | None) -> str:
    """Return the comparison as Markdown: differences in points, round and bits at ``target``."""
    notes, names = [], ["Data", "Method", "Pairs"]
    if against is not None:
        notes.append(
            f"Test accuracy minus that of {in_words(against)} with the same seed, in points."
        )
        if any(_several(group, partner(groups, group.data, against)) for group in groups):
            notes.append(MEANING)
        names += ["Average", "Bottom decile"]
    if target is not None:
        notes.append(f"Where the average first was {100 * target:g} per cent, mean over seeds.")
        names += ["Round", "Sent up"]
    rows = []
    for group in groups:
        other = None if against is None else partner(groups, group.data, against)
        pairs = "–" if other is None else str(len(_pairs(group, other)))
        cells = [*group.words, pairs]
        if against is not None:
            cells += [_points(group, other, column) for column in (ACCURACY, DECILE)]
        if target is not None:
            cells += _arrival(group, target)
        rows.append(markdown_row(cells))
    return "\n".join([" ".join(notes), "", *markdown_header(names, texts=2), *rows]) + "\n"


def csv_text(groups: Sequence[Group], against: str | None, target: float | None) -> str:
    """Return the comparison as CSV, one row per data set and method."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    differences = [f"{column}_difference" for column in (ACCURACY, DECILE)]
    names = [word for name in differences for word in (name, f"{name}_deviation")]
    writer.writerow(["data", "method", "pairs", *names, "target", "round", "up_bits"])
    for group in groups:
        other = None if against is None else partner(groups, group.data, against)
        numbers = [np.nan] * 4
        if other is not None:
            found = [last_difference(group, other, column) for column in (ACCURACY, DECILE)]
            numbers = [number for pair in found for number in pair]
        arrival = [np.nan, np.nan]
        if target is not None:
            arrival = list(np.mean([reached(run, target) for run in group.runs], axis=0))
        pairs = 0 if other is None else len(_pairs(group, other))
        cells = [*numbers, np.nan if target is None else target, *arrival]
        numbers_as_text = ["" if np.isnan(n) else f"{n:.10g}" for n in cells]
        writer.writerow([group.data, group.method, pairs, *numbers_as_text])
    return text.getvalue()


def _pairs(group: Group, other: Group) -> list[tuple[Run, Run]]:
    partners = {str(run.seed): run for run in other.runs}
    return [(run, partners[str(run.seed)]) for run in group.runs if str(run.seed) in partners]


def _differences(pairs: Sequence[tuple[Run, Run]], column: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the rounds that all runs have, and the differences, (pairs, rounds)."""
    evaluated = [run.metrics["round"] for pair in pairs for run in pair]
    rounds = reduce(np.intersect1d, evaluated) if evaluated else np.zeros(0)
    return rounds, np.array([_at(a, column, rounds) - _at(b, column, rounds) for a, b in pairs])


def _at(run: Run, column: str, rounds: np.ndarray) -> np.ndarray:
    return run.metrics[column][np.isin(run.metrics["round"], rounds)]


def _points(group: Group, other: Group | None, column: str) -> str:
    values = np.zeros(0) if other is None else last_differences(group, other, column)
    if group is other and np.isfinite(values).any():
        return "0"
    return estimate(100 * values).text("+.2f")


def _several(group: Group, other: Group | None) -> bool:
    """Return whether two methods have pairs enough for an interval."""
    return other is not None and group is not other and len(_pairs(group, other)) > 1


def _arrival(group: Group, target: float) -> list[str]:
    """Return round and bits at the target, or how many of the seeds reached it if not all did."""
    found = np.array([reached(run, target) for run in group.runs])
    arrived = int(np.isfinite(found[:, 0]).sum())
    if not arrived:
        return ["never", "–"]
    if arrived < len(found):
        return [f"{arrived} of {len(found)} seeds", "–"]
    return [f"{mean_and_deviation(found[:, 0])[0]:.0f}", bits(float(found[:, 1].mean()))]
