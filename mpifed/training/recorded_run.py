"""What a finished run has recorded, read in order to be compared with a repetition."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.checkpoint import files as checkpoint
from mpifed.errors import InputError, one_line
from mpifed.results.configurations import read_stored
from mpifed.results.results import Metrics, read_clients, read_metrics, read_summary
from mpifed.results.run_directories import check_finished
from mpifed.training.resume import only_as_last, resumed_after
from mpifed.training.versions import describe_versions

# The key of summary.json that a retimed run has and no other.
RETIMED = "retimed"


@dataclass(frozen=True)
class Recorded:
    """What a run directory holds, read by one rank."""

    directory: Path
    mapping: dict[str, Any]
    metrics: Metrics
    checkpoints: dict[int, tuple[Path, checkpoint.Meta]]
    damaged: dict[int, str]
    lacking: list[str]

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
    """Return what a finished run has recorded."""
    check_finished(directory)
    intact, damaged = {}, {}
    for path in checkpoint.listed(directory / "checkpoints"):
        try:
            intact[checkpoint.round_of(path)] = path, checkpoint.read_meta(path)
        except checkpoint.Damaged as error:
            damaged[checkpoint.round_of(path)] = str(error)
    mapping = read_stored(directory / "config.yaml")
    metrics = read_metrics(directory / "metrics.csv")
    lacking = [
        *_rows_lacking(directory, mapping, metrics, intact),
        *_checkpoint_lacking(directory, mapping, {*intact, *damaged}),
    ]
    return Recorded(directory, mapping, metrics, intact, damaged, lacking)


def _rows_lacking(
    directory: Path,
    mapping: Mapping[str, Any],
    metrics: Metrics,
    checkpoints: Mapping[int, tuple[Path, checkpoint.Meta]],
) -> list[str]:
    """Return a line for each row that metrics.csv lacks, or has of a later round than the last."""
    last, there = int(mapping["rounds"]), {int(text) for text in metrics.texts("round")}
    metas = [meta for number, (_, meta) in checkpoints.items() if number <= last]
    due = rounds_due(mapping, metas, resumed_after(directory / "log.txt"))
    return [
        *(f"round {number}: metrics.csv has no row of it" for number in sorted(due - there)),
        *(
            f"round {number}: metrics.csv has a row of it, but rounds is {last}"
            for number in sorted(there)
            if number > last
        ),
    ]


def rounds_due(
    mapping: Mapping[str, Any], metas: Iterable[checkpoint.Meta], resumed: int
) -> set[int]:
    """Return the rounds of which metrics.csv must have a row."""
    last, every = int(mapping["rounds"]), int(mapping["evaluation"]["every"])
    due = {0, last, *range((resumed // every + 1) * every, last, every)}
    for meta in metas:
        # The last checkpoint holds all rows, unless an earlier part of the run wrote it.
        whole = meta.round == last > resumed
        place = meta.columns.index("round") if meta.rows else 0
        recorded = {int(row[place]) for row in meta.rows}
        due |= {
            number
            for number in recorded
            if (whole or number <= min(resumed, last)) and not only_as_last(meta, number)
        }
    return due


def _checkpoint_lacking(
    directory: Path, mapping: Mapping[str, Any], checkpoints: set[int]
) -> list[str]:
    """Return a line if there is no checkpoint of the last round, in a list."""
    last = int(mapping["rounds"])
    # A run that is resumed at its end from a checkpoint elsewhere writes none.
    if last in checkpoints or resumed_after(directory / "log.txt") >= last or _retimed(directory):
        return []
    return [f"round {last}: checkpoints/{checkpoint.path_of(Path(), last)} is missing"]


def _retimed(directory: Path) -> bool:
    try:
        return RETIMED in read_summary(directory / "summary.json")
    except InputError:  # which is reported where the last round is repeated
        return False


def differing_clients(path: Path, made: Mapping[str, np.ndarray]) -> list[str]:
    """Return how a clients.h5 differs from the last evaluation."""
    try:
        stored = read_clients(path)
    except InputError as error:
        return [str(error)]
    there = {**stored.results, **{f"learnt/{k}": part for k, part in stored.learnt.items()}}
    found = [f"clients.h5 has no {name}" for name in made if name not in there]
    found += [f"clients.h5 has {name}, which the run does not make" for name in there.keys() - made]
    for name in made.keys() & there.keys():
        one, other = np.asarray(made[name]), there[name]
        if one.shape != other.shape or one.tobytes() != other.tobytes():
            found.append(f"clients.h5 has another {name}")
    return found


def differing_summary(path: Path, made: Mapping[str, Any], passed_over: Set[str]) -> list[str]:
    """Return how a summary.json differs from that of the repeated run."""
    try:
        summary = read_summary(path)
    except InputError as error:
        return [str(error)]
    found = []
    for name in [*made, *sorted(summary.keys() - made)]:
        # As in the file: 1, 1.0 and true differ, and NaN equals itself.
        there, here = (
            json.dumps(values[name], sort_keys=True) if name in values else None
            for values in (summary, made)
        )
        if name in passed_over or there == here:
            continue
        if there is None:
            found.append(f"summary.json has no {name}")
        elif here is None:
            found.append(f"summary.json has {one_line(name, 60)}, which the run does not make")
        else:
            found.append(f"summary.json has {name} {one_line(there, 80)}, not {here}")
    return found


def other_versions(directory: Path) -> list[str]:
    """Return which packages have other versions here than where the run was made."""
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
