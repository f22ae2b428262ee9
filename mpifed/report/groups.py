"""Groups of runs that differ only in the seed: one entry of a table and one curve of a plot."""

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
"""Algorithms as the papers print them; any other keeps its name."""

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
# Values that a label leaves out because they are the usual ones.
USUAL = {"exchange.schedule.name": "static"}


@dataclass(frozen=True)
class Curve:
    """The measurements of a group over the evaluated rounds.

    Attributes
    ----------
    rounds : ndarray, shape (k,)
        The rounds.
    bits : ndarray, shape (k,)
        Bits sent up and down until then, mean over seeds.
    mean : ndarray, shape (k,)
        The mean over seeds.
    deviation : ndarray, shape (k,)
        The sample standard deviation over seeds, 0 for one seed.
    """

    rounds: np.ndarray
    bits: np.ndarray
    mean: np.ndarray
    deviation: np.ndarray


@dataclass(frozen=True)
class Group:
    """The runs of one method on one data set, one per seed.

    Attributes
    ----------
    data : str
        The label of the data set.
    method : str
        The label of the method.
    runs : tuple[Run, ...]
        The runs.
    """

    data: str
    method: str
    runs: tuple[Run, ...]

    @property
    def finished(self) -> bool:
        """Whether all runs are finished."""
        return all(run.finished for run in self.runs)

    def mean_and_deviation(self, column: str) -> tuple[float, float]:
        """Return mean and sample deviation over seeds of the last value of a column.

        Parameters
        ----------
        column : str
            A column of metrics.csv.

        Returns
        -------
        tuple of float
            Mean and deviation; NaN where there are too few values.
        """
        return mean_and_deviation(np.array([run.last(column) for run in self.runs]))

    def seconds(self) -> float:
        """Return the mean wall time of a run in seconds."""
        return mean_and_deviation(np.array([run.seconds for run in self.runs]))[0]

    def curve(self, column: str, factor: float = 1.0) -> Curve:
        """Return a column over the rounds that all seeds have evaluated.

        Parameters
        ----------
        column : str
            A column of metrics.csv.
        factor : float, default 1.0
            A factor on its values.

        Returns
        -------
        Curve
            Mean and deviation over seeds.
        """
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
        """Return the test accuracies of all clients of all seeds, shape (seeds * clients,).

        None if any run lacks them: it is unfinished, or its task has no accuracies.
        """
        values = [run.client_accuracies for run in self.runs if run.client_accuracies is not None]
        return np.concatenate(values) if len(values) == len(self.runs) else None


def mean_and_deviation(values: np.ndarray) -> tuple[float, float]:
    """Return mean and sample deviation of the finite values.

    Parameters
    ----------
    values : ndarray, shape (n,)
        The values.

    Returns
    -------
    tuple of float
        Mean and deviation; NaN where there are too few values.

    Examples
    --------
    >>> mean_and_deviation(np.array([1.0, 3.0, np.nan]))
    (2.0, 1.4142135623730951)
    """
    values = values[np.isfinite(values)]
    mean = float(values.mean()) if len(values) else np.nan
    return mean, float(values.std(ddof=1)) if len(values) > 1 else np.nan


def group_runs(runs: Sequence[Run]) -> tuple[list[Group], list[str]]:
    """Group runs by data set and method.

    Two runs of one configuration and one seed have the same numbers; the longer one is kept.

    Parameters
    ----------
    runs : Sequence[Run]
        The runs.

    Returns
    -------
    tuple
        The groups, data set by data set in the order of the runs, and notes about runs that are
        unfinished or left out.
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
    """Return the leaves of a configuration under dotted keys, as text.

    Parameters
    ----------
    tree : Any
        A configuration, or a part of it.
    prefix : str, default ''
        The dotted key of the part.

    Returns
    -------
    dict of str to str
        The values, as JSON where they are not text.

    Examples
    --------
    >>> leaves({"rounds": 5, "data": {"name": "digits"}})
    {'rounds': '5', 'data.name': 'digits'}
    """
    if isinstance(tree, dict):
        found: dict[str, str] = {}
        for key, value in tree.items():
            found |= leaves(value, f"{prefix}.{key}" if prefix else str(key))
        return found
    return {prefix: tree if isinstance(tree, str) else json.dumps(tree, default=str)}


def _labels(titles: list[str], parts: list[dict[str, str]]) -> list[str]:
    """Return ``titles``, each with what distinguishes it from equal ones: 'FedEM, lr=0.1'."""
    labels = []
    for title, part in zip(titles, parts, strict=True):
        same = [p for t, p in zip(titles, parts, strict=True) if t == title]
        labels.append(", ".join([title, *_differences(part, same)]))
    return labels


def _differences(part: dict[str, str], same: Sequence[dict[str, str]]) -> list[str]:
    """Return what distinguishes ``part``: 'lr=0.1', and components as 'erdos_renyi p=0.05'.

    An option of a component is compared only where that component is used: a ring has no p.
    """
    words: list[str] = []
    named = ""  # the section whose component the last word names
    for key, value in part.items():
        section = key.rpartition(".")[0]
        is_name = key == f"{section}.name"
        alike = [p for p in same if is_name or _name(p, section) == _name(part, section)]
        # No component where others have one: what replaces it is named by another key.
        absent = value == "null" and any(f"{key}.name" in other for other in same)
        if absent or USUAL.get(key) == value or all(p.get(key) == value for p in alike):
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
