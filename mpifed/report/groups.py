"""Runs that differ only in the seed are one entry of a table and one curve of a plot."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.report.reading import Run

TITLES = {
    "apfl": "APFL",
    "clustered": "Clustered FL",
    "dcgd": "DCGD",
    "diana": "DIANA",
    "ditto": "Ditto",
    "fedadam": "FedAdam",
    "fedavg": "FedAvg",
    "fedavg_ft": "FedAvg+",
    "fedem": "FedEM",
    "fedmgs": "FedMGS",
    "fedmm": "FedMM",
    "fedmm_ot": "FedMM-OT",
    "fedmm_theta": "FedMM-Θ",
    "fedprox": "FedProx",
    "flix": "FLIX",
    "fomaml": "FO-MAML",
    "l2gd": "L2GD",
    "local": "Local",
    "mocha": "MOCHA",
    "pfedme": "pFedMe",
    "reptile": "Reptile",
    "sa_ssmm": "SA-SSMM",
    "scaffold": "SCAFFOLD",
}
"""Algorithms as the papers print them; any other goes by its own name."""

DATA_KEYS = ("data.", "clients")
# These change no number of a run, or (seed) are what a group averages over.
NO_DIFFERENCE = (
    "seed",
    "threads",
    "device",
    "checkpoint.",
    "evaluation.every",
    "evaluation.validation_split",
    "placement",
    "exchange.transport",
    "experiment",
    "algorithm.optima_from",
)
# What a name leaves out, because it goes without saying.
UNSAID = {"exchange.schedule.name": "static"}


@dataclass(frozen=True)
class Curve:
    """What a group measured at ``rounds``: ``bits`` sent so far, mean and deviation over seeds."""

    rounds: np.ndarray
    bits: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray


@dataclass(frozen=True)
class Group:
    """The runs of one method on one data set, one per seed."""

    data: str
    method: str
    runs: tuple[Run, ...]

    @property
    def finished(self) -> bool:
        return all(run.finished for run in self.runs)

    def mean_and_deviation(self, column: str) -> tuple[float, float]:
        """Of the last values over the seeds; the deviation is that of a sample, NaN for one."""
        return mean_and_deviation(np.array([run.last(column) for run in self.runs]))

    def seconds(self) -> float:
        """The mean wall seconds of a run."""
        return mean_and_deviation(np.array([run.seconds for run in self.runs]))[0]

    def curve(self, column: str, factor: float = 1.0) -> Curve:
        """``column`` times ``factor``, at the rounds that all seeds have evaluated."""
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
        """All clients of all seeds; None where a run has none (unfinished, or no accuracies)."""
        values = [run.client_accuracies for run in self.runs if run.client_accuracies is not None]
        return np.concatenate(values) if len(values) == len(self.runs) else None


def mean_and_deviation(values: np.ndarray) -> tuple[float, float]:
    """Mean and sample deviation of the finite ``values``; NaN where there are too few."""
    values = values[np.isfinite(values)]
    mean = float(values.mean()) if len(values) else np.nan
    return mean, float(values.std(ddof=1)) if len(values) > 1 else np.nan


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """The groups, data set by data set as they come first, and notes about what was left out.

    Two runs of one configuration and one seed are the same numbers; the one that went further
    counts.
    """
    flat = [leaves(run.config) for run in runs]
    data_parts = [{k: v for k, v in f.items() if k.startswith(DATA_KEYS)} for f in flat]
    method_parts = [
        {k: v for k, v in f.items() if not k.startswith((*DATA_KEYS, *NO_DIFFERENCE))} for f in flat
    ]
    datas = _labels([_data_title(run.config) for run in runs], data_parts)
    methods = _labels([_method_title(run.config) for run in runs], method_parts)
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


def _data_title(config: dict[str, Any]) -> str:
    data = config["data"]
    if isinstance(data.get("path"), str):
        return Path(data["path"]).stem
    return f"{data['name']}-{data['variant']}" if "variant" in data else str(data["name"])


def _method_title(config: dict[str, Any]) -> str:
    name = config["algorithm"]["name"]
    gossip = "D-" if config["exchange"]["name"] == "gossip" else ""
    return gossip + TITLES.get(name, name)


def leaves(tree: Any, prefix: str = "") -> dict[str, str]:
    """The leaves of a configuration under dotted keys, as text that can be compared and shown."""
    if isinstance(tree, dict):
        found: dict[str, str] = {}
        for key, value in tree.items():
            found |= leaves(value, f"{prefix}.{key}" if prefix else str(key))
        return found
    return {prefix: tree if isinstance(tree, str) else json.dumps(tree, default=str)}


def _labels(titles: list[str], parts: list[dict[str, str]]) -> list[str]:
    """``titles``, each with what tells it from the others of the same title: 'FedEM, lr=0.1'."""
    labels = []
    for title, part in zip(titles, parts, strict=True):
        same = [p for t, p in zip(titles, parts, strict=True) if t == title]
        labels.append(", ".join([title, *_differences(part, same)]))
    return labels


def _differences(part: dict[str, str], same: Sequence[dict[str, str]]) -> list[str]:
    """What tells ``part`` from ``same``: 'lr=0.1', and components as 'erdos_renyi p=0.05'.

    An option of a component is compared only where that component is used: a ring has no p.
    """
    words: list[str] = []
    named = ""  # the section whose component the last word names
    for key, value in part.items():
        section = key.rpartition(".")[0]
        is_name = key == f"{section}.name"
        alike = [p for p in same if is_name or _name(p, section) == _name(part, section)]
        # No component where others have one: what stands in its place has a name of its own.
        absent = value == "null" and any(f"{key}.name" in other for other in same)
        if absent or UNSAID.get(key) == value or all(p.get(key) == value for p in alike):
            continue
        if is_name and section:
            words.append(value)
            named = section
        elif section == named and words:
            words[-1] += f" {key.rpartition('.')[2]}={value}"
        else:
            words.append(f"{key.split('.', 1)[-1]}={value}")
    return words


def _name(part: dict[str, str], section: str) -> str | None:
    return part.get(f"{section}.name")
