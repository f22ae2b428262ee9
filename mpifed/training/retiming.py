"""What a finished run would have taken on another network: its clock over its rounds, replayed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from mpifed.config.configuration import Configuration, apply_overrides, resolve, to_yaml
from mpifed.config.requirements import chooses_neighbours
from mpifed.errors import InputError
from mpifed.io.atomic import replace_bytes
from mpifed.mpi.communicator import Alone
from mpifed.results.results import Metrics, line_of, read_metrics, read_summary
from mpifed.training.build import make
from mpifed.training.evaluation import columns_of
from mpifed.training.request import stored_horizon
from mpifed.training.run_directory import field_of
from mpifed.training.setup import Setup
from mpifed.training.simulated_time import COLUMN, SimulatedClock, is_simulated, taking_part
from mpifed.training.trained import stored_setup
from mpifed.training.verification import RecordedRun, read_run

SECTIONS = ("network", "compute")
COPIED = ("clients.h5", "log.txt")


@dataclass(frozen=True)
class Retimed:
    """The times of a run on another network, at each row of its metrics.csv."""

    run: Path
    configuration: Configuration
    columns: list[str]
    seconds: np.ndarray


def retime(run: str | Path, overrides: Mapping[str, Any]) -> Retimed:
    """Return what a finished run would have taken on another network; nothing is trained."""
    for key in overrides:
        if key.split(".")[0] not in SECTIONS:
            raise InputError(f"{key} cannot be changed without training; allowed: network, compute")
    recorded = read_run(Path(run))
    configuration = resolve(apply_overrides(recorded.mapping, overrides))
    _check(configuration, Path(run))
    changed = dataclasses.replace(
        _setup(recorded), network=configuration.network, compute=configuration.compute
    )
    if not is_simulated(changed):
        raise InputError("network and compute say nothing, so that there are no seconds to tell")
    seconds = _replayed(changed, recorded.metrics)
    return Retimed(Path(run), configuration, columns_of(changed), seconds)


def _check(configuration: Configuration, run: Path) -> None:
    """Refuse runs whose rounds do not follow from what is stored."""
    for fits, words in (
        (
            configuration.exchange.options.get("asynchrony", "none") == "none",
            "did not wait (exchange.asynchrony), so its network decided what was mixed",
        ),
        (configuration.compute.name != "measured", "has compute.name 'measured', by training"),
        (
            not chooses_neighbours(configuration),
            "has clients that chose whom they heard, which is not recorded",
        ),
        (
            configuration.on_divergence != "drop",
            "has on_divergence 'drop', so it is not recorded who took part in each round",
        ),
    ):
        if not fits:
            raise InputError(f"'{run}' {words}")


def _setup(recorded: RecordedRun) -> Setup:
    """Return the objects of the run, for one process."""
    if recorded.checkpoints:
        return stored_setup(recorded.directory, *recorded.checkpoints[max(recorded.checkpoints)])
    configuration = dataclasses.replace(
        resolve(recorded.mapping), device="cpu", placement="contiguous", threads=1
    )
    horizon = stored_horizon(recorded.mapping) or configuration.rounds
    return make(configuration, Alone(), horizon)


def _replayed(setup: Setup, metrics: Metrics) -> np.ndarray:
    """Return the seconds at each row; messages between two rows have their mean size."""
    clock = SimulatedClock(setup)
    rounds, sent, received = (
        [int(text) for text in metrics.texts(name)] for name in ("round", "up_bits", "down_bits")
    )
    seconds = np.zeros(len(rounds))
    for row in range(1, len(rounds)):
        exchanges = []
        for round in range(rounds[row - 1] + 1, rounds[row] + 1):
            active = taking_part(setup, round)
            arcs = setup.exchange.arcs(round, active, setup.dtype.itemsize)
            messages = int(active.sum()) if arcs is None else sum(map(len, arcs))
            exchanges.append((round, active, arcs, messages * bool(active.any())))
        total = max(1, sum(messages for *_, messages in exchanges))
        # Fractions: means of equal sizes are exact.
        up, down = (Fraction(bits[row] - bits[row - 1], total) for bits in (sent, received))
        for round, active, arcs, messages in exchanges:
            if active.any() or setup.algorithm.moves_without_clients():
                clock.add(round, active, arcs, float(up * messages), float(down * messages))
        seconds[row] = clock.seconds
    return seconds


def write(retimed: Retimed, directory: Path) -> None:
    """Write a run directory with other times, without checkpoints, that reports read as a run."""
    metrics = read_metrics(retimed.run / "metrics.csv")
    lines = [line_of(retimed.columns)]
    for row, seconds in zip(metrics.rows, retimed.seconds, strict=True):
        named = dict(zip(metrics.columns, row, strict=True)) | {COLUMN: field_of(float(seconds))}
        lines.append(line_of([named.get(name, "") for name in retimed.columns]))
    summary = read_summary(retimed.run / "summary.json")
    summary |= {COLUMN: float(retimed.seconds[-1]), "retimed": {"run": str(retimed.run.resolve())}}
    directory.mkdir(parents=True, exist_ok=True)
    # An interrupted command leaves no directory that passes for a finished run.
    (directory / "DONE").unlink(missing_ok=True)
    replace_bytes(directory / "config.yaml", to_yaml(retimed.configuration).encode())
    replace_bytes(directory / "metrics.csv", "".join(lines).encode())
    for name in COPIED:
        if (retimed.run / name).exists():
            replace_bytes(directory / name, (retimed.run / name).read_bytes())
    replace_bytes(directory / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
    replace_bytes(directory / "DONE", b"")
