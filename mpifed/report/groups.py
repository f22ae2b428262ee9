"""Groups of runs that differ only in the seed, and the settings in which others differ."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mpifed.components.registry import without_module
from mpifed.report.intervals import Estimate, estimate, mean_and_deviation
from mpifed.report.names import data_title, in_words, method_title
from mpifed.report.runs import Run

# Values that a label leaves out because they are the usual ones.
USUAL = {"exchange.schedule.name": "static"}
GRAPH = "exchange.topology"


DATA_KEYS = ("data.", "clients")
# These change no number of a run, or (seed) are what a group averages over.
NO_DIFFERENCE = (
    "seed",
    "threads",
    "device",
    "checkpoint.",
    "storage.",
    "evaluation.every",
    "evaluation.validation_split",
    "hosts",
    "placement",
    "placement_costs",
    "exchange.transport",
    "exchange.reduction",
    "arithmetic",
    "experiment",
    "algorithm.optima_from",
)


@dataclass(frozen=True)
class Curve:
    """The measurements of a group over the evaluated rounds."""

    rounds: np.ndarray
    bits: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray


@dataclass(frozen=True)
class Group:
    """The runs of one method on one data set, one per seed; ``name`` is the user's for it."""

    data: str
    method: str
    runs: tuple[Run, ...]
    name: str = ""

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

    def last(self, column: str) -> np.ndarray:
        """Return the last value of a column of each run."""
        return np.array([run.last(column) for run in self.runs])

    def mean_and_deviation(self, column: str) -> tuple[float, float]:
        """Return mean and sample deviation over seeds of the last value of a column."""
        return mean_and_deviation(self.last(column))

    def estimate(self, column: str, factor: float = 1.0) -> Estimate:
        """Return mean and 95 % interval over seeds of the last value of a column."""
        return estimate(factor * self.last(column))

    def seconds(self) -> float:
        """Return the mean wall time of a run in seconds."""
        return mean_and_deviation(np.array([run.seconds for run in self.runs]))[0]

    def curve(self, column: str, factor: float = 1.0) -> Curve:
        """Return a column over the rounds that all seeds have evaluated."""
        started = [run.metrics for run in self.runs if run.rounds is not None]
        rounds = np.zeros(0) if not started else started[0]["round"]
        for metrics in started[1:]:
            rounds = np.intersect1d(rounds, metrics["round"])
        if not len(rounds):
            return Curve(rounds, rounds, rounds, rounds)
        common = [np.isin(metrics["round"], rounds) for metrics in started]
        values = [factor * m[column][rows] for m, rows in zip(started, common, strict=True)]
        sent = [
            (m["up_bits"] + m["down_bits"])[rows] for m, rows in zip(started, common, strict=True)
        ]
        deviation = np.std(values, axis=0, ddof=1) if len(started) > 1 else np.zeros(len(rounds))
        return Curve(rounds, np.mean(sent, axis=0), np.mean(values, axis=0), deviation)

    def client_accuracies(self) -> np.ndarray | None:
        """Return the test accuracies of all clients of all seeds, shape (seeds * clients,)."""
        values = [run.client_accuracies for run in self.runs if run.client_accuracies is not None]
        return np.concatenate(values) if len(values) == len(self.runs) else None


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
            kept, left = (run, other) if _progress(run) > _progress(other) else (other, run)
            members[str(run.seed)] = kept
            notes.append(f"{left.path} repeats {kept.path} and is left out")
    groups = [Group(data, method, tuple(runs.values())) for (data, method), runs in seeds.items()]
    groups.sort(key=lambda group: datas.index(group.data))
    return groups, notes + [
        _unfinished(run) for group in groups for run in group.runs if not run.finished
    ]


def _progress(run: Run) -> tuple[bool, int]:
    return run.finished, -1 if run.rounds is None else run.rounds


def _unfinished(run: Run) -> str:
    if run.rounds is None:
        return f"{run.path} is unfinished: nothing evaluated yet"
    planned = run.config.get("rounds", "?")
    if run.diverged:
        return f"{run.path} diverged: evaluated until round {run.rounds} of {planned}"
    return f"{run.path} is unfinished: evaluated at round {run.rounds} of {planned}"


def leaves(tree: Any, prefix: str = "") -> dict[str, str]:
    """Return the leaves of a configuration under dotted keys, as text."""
    if isinstance(tree, dict):
        found: dict[str, str] = {}
        for key, value in tree.items():
            found |= leaves(value, f"{prefix}.{key}" if prefix else str(key))
        return found
    return {prefix: tree if isinstance(tree, str) else json.dumps(tree, default=str)}


def comparable(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration whose participation is a number wherever it is a fraction."""
    given = config.get("participation")
    if not isinstance(given, dict) or given.get("name") != "uniform":
        return config
    options = {f"participation.{key}": given[key] for key in given.keys() - {"name", "fraction"}}
    return config | {"participation": given.get("fraction")} | options


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
            words.append(_shown(value, [p.get(key, "") for p in same]))
            named = section
        elif section == named and words:
            words[-1] += f" {key.rpartition('.')[2]}={value}"
        else:
            words.append(f"{key.split('.', 1)[-1]}={value}")
    return words


def _is_number(key: str, value: str) -> bool:
    """Return whether an option of a graph is a number that is no seed."""
    return not key.endswith(".seed") and value.replace(".", "", 1).isdecimal()


def _shown(name: str, others: Sequence[str]) -> str:
    """Return the name of a component, without its module if no other one is called so then."""
    alike = {other for other in others if without_module(other) == without_module(name)}
    return without_module(name) if len(alike) == 1 else name


# Keys that never separate panels: also the length of a run and the run it started from.
NO_PANEL = (*NO_DIFFERENCE, "rounds", "algorithm.start_from")


def differing(flat: Sequence[Mapping[str, str]], aside: Collection[str]) -> list[str]:
    """Return the keys in which runs differ."""
    found = []
    for key in dict.fromkeys(key for said in flat for key in said):
        if key.startswith(NO_PANEL) or any(f"{key}.".startswith(f"{one}.") for one in aside):
            continue
        name = f"{key.rpartition('.')[0]}.name"
        named_apart = key != name and len({said.get(name) for said in flat}) > 1
        among = [said for said in flat if key in said] if named_apart else flat
        if len({said.get(key) for said in among}) > 1:
            found.append(key)
    return found


def label(said: Mapping[str, str], keys: Sequence[str]) -> str:
    """Return the values of some keys as a label."""
    return ", ".join(
        f"{short(key)}={said[key]}" for key in keys if key in said and said[key] != "null"
    )


def short(key: str) -> str:
    """Return the last part of a dotted key; the section for the name of a component."""
    return key.rpartition(".")[2] if not key.endswith(".name") else key.split(".")[0]


def naturally(text: str) -> list[tuple[float, str]]:
    """Return a sort key that orders labels by their numbers."""

    def number_first(word: str) -> tuple[float, str]:
        try:
            return float(word), ""
        except ValueError:
            return float("inf"), word

    return [number_first(word) for word in text.replace("=", " ").replace(",", " ").split()]
