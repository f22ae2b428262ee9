"""Groups of runs that differ only in the seed: their names, their means, and their differences."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

import numpy as np

from mpifed.components.registry import without_module
from mpifed.errors import printable
from mpifed.report.names import data_title, in_words, method_title
from mpifed.report.runs import ACCURACY, DECILE, DISTANCE, Run

# What is told of where a target was reached, and what a budget may limit.
REACHED = ("round", "up_bits", "seconds", "simulated_seconds")
LIMITS = ("degree", "rounds", "bits", "seconds")

# What ``±`` is, as ``--spread`` chooses.
SPREADS = {
    "ci": "± is half the 95 % interval of Student's t over seeds.",
    "sd": "± is the standard deviation over seeds.",
    "se": "± is the standard error of the mean over seeds.",
}
# What is around means in charts, as ``--spread`` chooses.
BANDS = {"ci": "95 % intervals", "sd": "one standard deviation", "se": "one standard error"}
LEVEL = 0.95

# Relative to the first distance: below it, float32 rounding is as large as the contraction.
ROUNDING = 1e-12

# Values that a label leaves out because they are the usual ones.
USUAL = {"exchange.schedule.name": "static"}
GRAPH = "exchange.topology"
DATA_KEYS = ("data.", "clients")
# These change no number of a run, or (seed) are what a group averages over.
NO_DIFFERENCE = (
    "seed", "experiment", "threads", "device", "hosts", "placement",
    "checkpoint.", "storage.", "evaluation.every", "evaluation.validation_split",
    "evaluation.metrics",
    "exchange.transport", "exchange.reduction", "arithmetic", "algorithm.optima_from",
)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """A mean with its sample deviation, 95 % interval and p-value, by Student's t distribution.

    ``spread`` names what is shown behind ``±``, one of ``SPREADS``.
    """

    mean: float
    deviation: float
    half_width: float
    count: int
    p_value: float
    spread: str = "ci"

    def text(self, form: str, width: str | None = None) -> str:
        """Return the mean, and its spread behind ``±`` if there is one."""
        if math.isnan(self.mean):
            return "–"
        if math.isnan(self.deviation):
            return format(self.mean, form)
        return f"{self.mean:{form}} ± {self.shown:{width or form.removeprefix('+')}}"

    @property
    def shown(self) -> float:
        """What stands behind ``±``; NaN for a single value."""
        return float(spread_of(np.array(self.deviation), self.count, self.spread))


def spread_of(deviations: np.ndarray, count: int, spread: str) -> np.ndarray:
    """Return what is shown around means of ``count`` values with these sample deviations."""
    from scipy.special import stdtrit

    if spread == "sd" or count < 2:
        return deviations
    factor = 1.0 if spread == "se" else float(stdtrit(count - 1, (1 + LEVEL) / 2))
    return factor * deviations / math.sqrt(count)


def estimate(values: np.ndarray, spread: str = "ci") -> Estimate:
    """Return what the finite ones of some values say of their mean."""
    from scipy.special import stdtr

    values = values[np.isfinite(values)]
    count = len(values)
    mean = float(values.mean()) if count else math.nan
    if count < 2:
        return Estimate(mean, math.nan, math.nan, count, math.nan, spread)
    deviation = float(values.std(ddof=1))
    error = deviation / math.sqrt(count)
    half_width = float(spread_of(np.array(deviation), count, "ci"))
    # Without any deviation the mean is certain: 0 or not.
    p_value = 2 * float(stdtr(count - 1, -abs(mean) / error)) if error else float(mean == 0)
    return Estimate(mean, deviation, half_width, count, p_value, spread)


@dataclass(frozen=True)
class Curve:
    """Means over seeds, and their deviations, at the rounds that all runs have evaluated.

    ``band`` is what is drawn around them, by the spread that was chosen.
    """

    rounds: np.ndarray
    bits: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray
    band: np.ndarray


def _curve(runs: Sequence[Run], rounds: np.ndarray, values: np.ndarray, spread: str) -> Curve:
    """Return the curve of values, (runs, rounds)."""
    if not len(rounds):
        return Curve(rounds, rounds, rounds, rounds, rounds)
    sent = np.mean([_sent(run, rounds) for run in runs], axis=0)
    deviation = values.std(axis=0, ddof=1) if len(values) > 1 else np.zeros(len(rounds))
    band = spread_of(deviation, len(values), spread)
    return Curve(rounds, sent, values.mean(axis=0), deviation, band)


def _sent(run: Run, rounds: np.ndarray) -> np.ndarray:
    """Return the bits of all messages: under gossip each goes up one edge and down the same."""
    up, down = (_at(run, column, rounds) for column in ("up_bits", "down_bits"))
    exchange = run.config.get("exchange")
    name = exchange.get("name") if isinstance(exchange, dict) else exchange
    return up if name == "gossip" else up + down


def _common_rounds(runs: Sequence[Run]) -> np.ndarray:
    return reduce(np.intersect1d, [run.metrics["round"] for run in runs] or [np.zeros(0)])


def _at(run: Run, column: str, rounds: np.ndarray) -> np.ndarray:
    return run.metrics[column][np.isin(run.metrics["round"], rounds)]


@dataclass(frozen=True)
class Group:
    """The runs of one method on one data set, one per seed; ``name`` is the user's for it.

    ``spread`` is what tables show behind ``±``. Runs in ``left_out`` got less far than ``runs`` and
    are part of no mean.
    """

    data: str
    method: str
    runs: tuple[Run, ...]
    name: str = ""
    spread: str = "ci"
    left_out: tuple[Run, ...] = ()

    @property
    def words(self) -> tuple[str, str]:
        """Data set and method as tables name them."""
        return in_words(self.data), self.name or in_words(self.method)

    @property
    def title(self) -> str:
        """The method as charts and the page name it."""
        return self.words[1] + ("" if self.finished else " (unfinished)")

    @property
    def finished(self) -> bool:
        """Whether all runs are finished."""
        return all(run.finished for run in self.runs)

    @property
    def seconds(self) -> float:
        """The mean wall time of a run."""
        return estimate(np.array([run.seconds for run in self.runs])).mean

    def estimate(self, column: str, factor: float = 1.0) -> Estimate:
        """Return mean and spread over seeds of the last value of a column."""
        return estimate(factor * np.array([run.last(column) for run in self.runs]), self.spread)

    def curve(self, column: str, factor: float = 1.0) -> Curve:
        """Return a column over the rounds that all seeds have evaluated."""
        started = [run for run in self.runs if run.rounds is not None]
        rounds = _common_rounds(started)
        values = factor * np.array([_at(run, column, rounds) for run in started])
        return _curve(started, rounds, values, self.spread)

    def client_accuracies(self) -> np.ndarray | None:
        """Return the test accuracies of all clients of all seeds, shape (seeds * clients,)."""
        values = [run.client_accuracies for run in self.runs if run.client_accuracies is not None]
        return np.concatenate(values) if len(values) == len(self.runs) else None


def shared_title(groups: Sequence[Group]) -> str:
    """Return the title of all methods, where each has settings behind it and no name of its own."""
    titles = {group.method.partition(", ")[0] for group in groups}
    named = all(", " in group.method and not group.name for group in groups)
    return titles.pop() if len(titles) == 1 and named else ""


def without_shared_title(groups: Sequence[Group]) -> list[Group]:
    """Return groups whose names leave out the title of all methods: 'ring' for 'D-FedAvg, ring'."""
    title = shared_title(groups)
    return [
        replace(group, name=group.words[1].partition(", ")[2]) if title else group
        for group in groups
    ]


def partner(groups: Sequence[Group], data: str, method: str | None) -> Group | None:
    """Return the group of a method on a data set."""
    return next((g for g in groups if (g.data, g.method) == (data, method)), None)


def pairs(group: Group, other: Group) -> list[tuple[Run, Run]]:
    """Return the runs of two methods that have the same seed."""
    partners = {str(run.seed): run for run in other.runs}
    return [(run, partners[str(run.seed)]) for run in group.runs if str(run.seed) in partners]


def difference(group: Group, other: Group, column: str, factor: float = 1.0) -> Curve:
    """Return a column of one method minus that of another, over the seeds that both have run."""
    paired = pairs(group, other)
    rounds = _common_rounds([run for pair in paired for run in pair])
    values = np.array([_at(a, column, rounds) - _at(b, column, rounds) for a, b in paired])
    return _curve([run for run, _ in paired], rounds, factor * values, group.spread)


def last_differences(group: Group, other: Group, column: str) -> np.ndarray:
    """Return a column's differences at the last round that all paired runs have, (pairs,)."""
    paired = pairs(group, other)
    last = _common_rounds([run for pair in paired for run in pair])[-1:]
    values = [_at(a, column, last) - _at(b, column, last) for a, b in paired]
    return np.concatenate([*values, np.zeros(0)])


def reached(run: Run, target: float) -> np.ndarray:
    """Return ``REACHED`` where the test accuracy first was at least ``target``, NaN if never."""
    hits = np.flatnonzero(run.metrics[ACCURACY] >= target)
    if not len(hits):
        return np.full(len(REACHED), math.nan)
    return np.array([float(run.metrics[column][hits[0]]) for column in REACHED])


def last_within(run: Run, limits: Mapping[str, float]) -> np.ndarray | None:
    """Return what a run had used and reached at its last evaluation within limits; None if none.

    The degree, rounds, bits and seconds, those of the simulated federation where it has a clock,
    then the accuracies; (6,). A run without a graph keeps no limit on the degree.
    """
    metrics = run.metrics
    clock = metrics["simulated_seconds"]
    used = {
        "degree": np.full(len(clock), run.graph.get("degree", math.nan)),
        "rounds": metrics["round"],
        "bits": _sent(run, metrics["round"]),
        "seconds": clock if np.isfinite(clock).any() else metrics["seconds"],
    }
    within = np.flatnonzero(np.all([used[key] <= limit for key, limit in limits.items()], axis=0))
    if not len(within):
        return None
    return np.array([c[within[-1]] for c in (*used.values(), metrics[ACCURACY], metrics[DECILE])])


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
    predicted = [run.predicted.get("per_round", math.nan) for run in group.runs]
    measured = [contraction(run) for run in group.runs]
    return [
        estimate(np.array(predicted)).mean,
        estimate(np.array(measured)).mean,
        group.estimate(DISTANCE).mean,
    ]


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """Group runs by data set and method."""
    flat = [leaves(comparable(run.config)) for run in runs]
    data_parts = [{k: v for k, v in f.items() if k.startswith(DATA_KEYS)} for f in flat]
    method_parts = [
        {k: v for k, v in f.items() if not k.startswith((*DATA_KEYS, *NO_DIFFERENCE))} for f in flat
    ]
    datas = distinct_labels([data_title(run.config) for run in runs], data_parts)
    methods = distinct_labels([method_title(run.config) for run in runs], method_parts)
    seeds: dict[tuple[str, str], dict[str, Run]] = {}
    notes = []
    for run, data, method in zip(runs, datas, methods, strict=True):
        members = seeds.setdefault((data, method), {})
        other = members.setdefault(str(run.seed), run)
        if other is not run:
            furthest, left_out = (run, other) if _progress(run) > _progress(other) else (other, run)
            members[str(run.seed)] = furthest
            notes.append(f"{left_out.path} repeats {furthest.path} and is left out")
    groups = []
    for (data, method), members in seeds.items():
        # A mean over runs at different rounds would be one of nothing.
        last = max(map(_progress, members.values()))
        counted: list[Run] = []
        excluded: list[Run] = []
        for run in members.values():
            (counted if run.finished or _progress(run) == last else excluded).append(run)
        groups.append(Group(data, method, tuple(counted), left_out=tuple(excluded)))
    groups.sort(key=lambda group: datas.index(group.data))
    for group in groups:
        notes += [_unfinished(run) for run in group.runs if not run.finished]
        notes += [f"{_unfinished(run)}; it is left out of the means" for run in group.left_out]
    return groups, list(map(printable, notes))


def _progress(run: Run) -> tuple[bool, int]:
    return run.finished, -1 if run.rounds is None else run.rounds


def _unfinished(run: Run) -> str:
    until = f"until round {run.rounds} of {run.config.get('rounds', '?')}"
    evaluated = "nothing evaluated yet" if run.rounds is None else f"evaluated {until}"
    return f"{run.path} {'diverged' if run.diverged else 'is unfinished'}: {evaluated}"


def leaves(tree: Any, prefix: str = "") -> dict[str, str]:
    """Return the leaves of a configuration under dotted keys, as printable text."""
    if isinstance(tree, dict):
        flat: dict[str, str] = {}
        for key, value in tree.items():
            flat |= leaves(value, f"{prefix}.{key}" if prefix else str(key))
        return flat
    text = tree if isinstance(tree, str) else json.dumps(tree, default=str)
    return {printable(prefix): printable(text)}


def comparable(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose participation is a number wherever it is a fraction."""
    participation = config.get("participation")
    if not isinstance(participation, dict) or participation.get("name") != "uniform":
        return config
    options = {
        f"participation.{key}": participation[key]
        for key in participation.keys() - {"name", "fraction"}
    }
    return config | {"participation": participation.get("fraction")} | options


def distinct_labels(titles: list[str], parts: list[dict[str, str]]) -> list[str]:
    """Return titles, each with what distinguishes it from equal ones: 'FedEM, lr=0.1'."""
    labels = []
    for title, part in zip(titles, parts, strict=True):
        same = [p for t, p in zip(titles, parts, strict=True) if t == title]
        labels.append(", ".join([title, *_differences(part, same)]))
    return labels


def _differences(part: dict[str, str], same: Sequence[dict[str, str]]) -> list[str]:
    """Return what distinguishes ``part``: 'lr=0.1', and components as 'erdos_renyi p=0.05'."""
    words: list[str] = []
    named = ""  # the section whose component the last word names
    for key, value in part.items():
        section = key.rpartition(".")[0]
        name = f"{section}.name"
        is_name = key == name
        alike = [p for p in same if is_name or p.get(name) == part.get(name)]
        # No component where others have one: what replaces it is named by another key.
        absent = value == "null" and any(f"{key}.name" in other for other in same)
        if section == named == GRAPH and _is_number(key, value):
            words[-1] += f" {key.rpartition('.')[2]}={value}"
            continue
        if absent or USUAL.get(key) == value or all(p.get(key) == value for p in alike):
            continue
        if is_name and section:
            words.append(_short_name(value, [p.get(key, "") for p in same]))
            named = section
        elif section == named and words:
            words[-1] += f" {key.rpartition('.')[2]}={value}"
        else:
            words.append(f"{key.split('.', 1)[-1]}={value}")
    return words


def _is_number(key: str, value: str) -> bool:
    """Return whether an option of a graph is a number that is no seed."""
    return not key.endswith(".seed") and value.replace(".", "", 1).isdecimal()


def _short_name(name: str, others: Sequence[str]) -> str:
    """Return the name of a component, without its module if no other one is called so then."""
    alike = {other for other in others if without_module(other) == without_module(name)}
    return without_module(name) if len(alike) == 1 else name
