"""What a finished run has recorded, read in order to be compared with a repetition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.checkpoint import files as checkpoint
from mpifed.errors import InputError
from mpifed.reading.configurations import read_stored
from mpifed.reading.results import Metrics, read_clients, read_metrics, read_summary
from mpifed.reading.run_directories import check_finished
from mpifed.training.versions import describe_versions

IN_BOTH = ("state_digest", "test_accuracy", "test_accuracy_p10", "test_loss")
"""What summary.json repeats of the last row of metrics.csv."""


@dataclass(frozen=True)
class Recorded:
    """What a run directory holds, read by one rank.

    Attributes
    ----------
    directory : Path
        The run directory.
    mapping : dict
        The stored configuration.
    metrics : Metrics
        Rows of metrics.csv.
    checkpoints : dict of int to (Path, Meta)
        Intact checkpoints by round.
    damaged : dict of int to str
        What is wrong with the others, by round.
    """

    directory: Path
    mapping: dict[str, Any]
    metrics: Metrics
    checkpoints: dict[int, tuple[Path, checkpoint.Meta]]
    damaged: dict[int, str]

    @property
    def rounds(self) -> int:
        """The last round."""
        return int(self.mapping["rounds"])

    @property
    def known(self) -> list[int]:
        """The rounds of which something is recorded, ascending; the last one is among them."""
        evaluated = map(int, self.metrics.texts("round"))
        return sorted({*evaluated, *self.checkpoints, self.rounds})

    def row(self, round: int) -> dict[str, str] | None:
        """Return the recorded row of a round by column; None where it was not evaluated."""
        for row in self.metrics.rows:
            named = dict(zip(self.metrics.columns, row, strict=True))
            if int(named["round"]) == round:
                return named
        return None


def read_run(directory: Path) -> Recorded:
    """Return what a finished run has recorded.

    Parameters
    ----------
    directory : Path
        The run directory.

    Raises
    ------
    InputError
        If it is not that of a finished run.
    """
    check_finished(directory)
    intact, damaged = {}, {}
    for path in checkpoint.listed(directory / "checkpoints"):
        try:
            intact[checkpoint.round_of(path)] = path, checkpoint.read_meta(path)
        except checkpoint.Damaged as error:
            damaged[checkpoint.round_of(path)] = str(error)
    mapping = read_stored(directory / "config.yaml")
    metrics = read_metrics(directory / "metrics.csv")
    return Recorded(directory, mapping, metrics, intact, damaged)


def differing_results(
    recorded: Recorded, made: Mapping[str, np.ndarray], values: Mapping[str, Any]
) -> list[str]:
    """Return how clients.h5 and summary.json differ from the last evaluation."""
    try:
        stored = read_clients(recorded.directory / "clients.h5")
        summary = read_summary(recorded.directory / "summary.json")
    except InputError as error:
        return [str(error)]
    there = {**stored.results, **{f"learnt/{k}": part for k, part in stored.learnt.items()}}
    found = [f"clients.h5 has no {name}" for name in made if name not in there]
    found += [f"clients.h5 has {name}, which the run does not make" for name in there.keys() - made]
    for name in made.keys() & there.keys():
        one, other = np.asarray(made[name]), there[name]
        if one.shape != other.shape or one.tobytes() != other.tobytes():
            found.append(f"clients.h5 has another {name}")
    return found + [
        f"summary.json has {name} {summary.get(name)}, not {values.get(name)}"
        for name in IN_BOTH
        if summary.get(name) != values.get(name)
    ]


def other_versions(directory: Path) -> list[str]:
    """Return which packages have other versions here than where the run was made.

    Parameters
    ----------
    directory : Path
        The run directory.
    """
    try:
        then = read_summary(directory / "summary.json").get("versions")
    except InputError:  # which is a difference in itself, and was reported
        return []
    now, known = describe_versions(), then if isinstance(then, dict) else {}
    return [
        f"{name} {known[name]} there, {now[name]} here"
        for name in now
        if name in known and known[name] != now[name]
    ]
