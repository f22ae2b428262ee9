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

from mpifed.checkpoint import files as checkpoint
from mpifed.config.configuration import Configuration, resolve, to_yaml
from mpifed.config.experiments import apply_overrides
from mpifed.errors import InputError
from mpifed.io.atomic import replace_bytes
from mpifed.mpi.communicator import Alone
from mpifed.results.results import Metrics, read_metrics, read_summary
from mpifed.training.build import Setup, make
from mpifed.training.evaluation import columns_of
from mpifed.training.request import stored_horizon
from mpifed.training.run_directory import field_of, line_of
from mpifed.training.simulated_time import COLUMN, SimulatedClock, is_simulated, taking_part
from mpifed.training.trained import described, without_files
from mpifed.training.verification import RETIMED, Recorded, read_run

SECTIONS = ("network", "compute")
COPIED = ("clients.h5", "log.txt", "timing.csv")


@dataclass(frozen=True)
class Retimed:
    """The times of a run on another network."""

    run: Path
    configuration: Configuration
    columns: list[str]
    rounds: np.ndarray
    seconds: np.ndarray
    before: np.ndarray | None
    exact: bool
    error: float | None

    @property
    def remark(self) -> str:
        """How the bits of a round are known, in words."""
        if self.exact:
            return "bits of each round are exact"
        known = "" if self.error is None else f"; its own network differs by {self.error:.1e}"
        return f"bits of a round are means between rows{known}"


def retime(run: str | Path, overrides: Mapping[str, Any]) -> Retimed:
    """Return what a finished run would have taken on another network; nothing is trained."""
    for key in overrides:
        if key.split(".")[0] not in SECTIONS:
            raise InputError(f"{key} cannot be changed without training; allowed: network, compute")
    recorded = read_run(Path(run))
    stored, other = recorded.mapping, apply_overrides(recorded.mapping, overrides)
    configuration = resolve(other)
    _check(configuration, Path(run))
    setup = _setup(recorded)
    changed = dataclasses.replace(
        setup,
        configuration=dataclasses.replace(
            setup.configuration, network=configuration.network, compute=configuration.compute
        ),
    )
    if not is_simulated(changed):
        raise InputError("network and compute say nothing, so that there are no seconds to tell")
    clocks = [SimulatedClock(changed)]
    has_own = COLUMN in recorded.metrics.columns and _compute(stored) != "measured"
    clocks += [SimulatedClock(setup)] if has_own else []
    seconds, exact = _replayed(setup, recorded.metrics, clocks, Path(run))
    before = recorded.metrics.numbers(COLUMN) if COLUMN in recorded.metrics.columns else None
    error = None
    if has_own and before is not None:
        apart = np.abs(seconds[1] - before) / np.where(before > 0, before, 1.0)
        error = float(apart.max(initial=0.0))
    rounds = np.array([int(text) for text in recorded.metrics.texts("round")])
    exact = exact and not error
    columns = columns_of(changed)
    return Retimed(Path(run), configuration, columns, rounds, seconds[0], before, exact, error)


def _check(configuration: Configuration, run: Path) -> None:
    """Refuse runs whose rounds do not follow from what is stored."""
    if configuration.exchange.options.get("asynchrony", "none") != "none":
        raise InputError(
            f"'{run}' did not wait (exchange.asynchrony), so its network decided what was mixed; "
            "another network needs a run of its own"
        )
    if configuration.compute.name == "measured":
        raise InputError(
            f"compute.name of '{run}' is 'measured', which needs training; allowed: compute of "
            "another name, such as compute={name: constant, seconds: 0.02}"
        )
    if configuration.on_divergence == "drop":
        raise InputError(
            f"on_divergence of '{run}' is 'drop', so it is not recorded who took part in each round"
        )


def _compute(stored: Mapping[str, Any]) -> Any:
    given = stored.get("compute")
    return given.get("name") if isinstance(given, Mapping) else given


def _setup(recorded: Recorded) -> Setup:
    """Return the objects of the run, for one process."""
    newest = max(recorded.checkpoints, default=None)
    arrays, dataset, horizon = None, None, stored_horizon(recorded.mapping)
    configuration = resolve(recorded.mapping)
    if newest is not None:
        path, meta = recorded.checkpoints[newest]
        arrays, horizon = checkpoint.read_arrays(path), meta.horizon
        configuration, dataset = described(meta, recorded.directory)
    configuration = dataclasses.replace(
        without_files(configuration), device="cpu", placement="contiguous", threads=1
    )
    return make(configuration, Alone(), horizon or configuration.rounds, arrays, dataset)


def _replayed(
    setup: Setup, metrics: Metrics, clocks: list[SimulatedClock], run: Path
) -> tuple[np.ndarray, bool]:
    """Return the seconds of each clock at each row, (clocks, rows), and whether bits are exact."""
    rounds, counted = ([int(text) for text in metrics.texts(name)] for name in ("round", "up_bits"))
    received = [int(text) for text in metrics.texts("down_bits")]
    seconds = np.zeros((len(clocks), len(rounds)))
    sizes, single = set(), True
    for row in range(1, len(rounds)):
        between = range(rounds[row - 1] + 1, rounds[row] + 1)
        counts = [_messages(setup, round) for round in between]
        _check_active(metrics, row, setup, between[-1], run)
        total = max(1, sum(counts))
        up = Fraction(counted[row] - counted[row - 1], total)
        down = Fraction(received[row] - received[row - 1], total)
        sizes.add((up, down))
        single = single and sum(map(bool, counts)) <= 1
        for round, messages in zip(between, counts, strict=True):
            active = taking_part(setup, round)
            if not active.any() and not setup.algorithm.steps_without_clients:
                continue
            arcs = setup.exchange.arcs(round, active, setup.dtype.itemsize)
            for clock in clocks:
                clock.add(round, active, arcs, float(up * messages), float(down * messages))
        seconds[:, row] = [clock.seconds for clock in clocks]
    whole = all(size.denominator == 1 for pair in sizes for size in pair)
    return seconds, single or (len(sizes) == 1 and whole and len(rounds) > 2)


def _messages(setup: Setup, round: int) -> int:
    """Return the number of messages of a round: arcs, or participants where there is a server."""
    active = taking_part(setup, round)
    if not active.any():
        return 0
    arcs = setup.exchange.arcs(round, active, setup.dtype.itemsize)
    return int(active.sum()) if arcs is None else len(arcs)


def _check_active(metrics: Metrics, row: int, setup: Setup, round: int, run: Path) -> None:
    there, here = metrics.texts("active_clients")[row], int(taking_part(setup, round).sum())
    if there and int(there) != here:
        raise InputError(
            f"'{run}' has {there} active clients in round {round}, where its configuration says "
            f"{here}; was it written by another version of mpifed?"
        )


def write(found: Retimed, directory: Path) -> None:
    """Write a run directory with other times, without checkpoints, that reports read as a run."""
    metrics = read_metrics(found.run / "metrics.csv")
    lines = [line_of(found.columns)]
    for row, seconds in zip(metrics.rows, found.seconds, strict=True):
        named = dict(zip(metrics.columns, row, strict=True)) | {COLUMN: field_of(float(seconds))}
        lines.append(line_of([named.get(name, "") for name in found.columns]))
    summary = read_summary(found.run / "summary.json")
    about = {"run": str(found.run.resolve()), "exact": found.exact, "error": found.error}
    summary |= {COLUMN: float(found.seconds[-1]), RETIMED: about}
    try:
        directory.mkdir(parents=True, exist_ok=True)
        # An interrupted command leaves no directory that passes for a finished run.
        (directory / "DONE").unlink(missing_ok=True)
        replace_bytes(directory / "config.yaml", to_yaml(found.configuration).encode())
        replace_bytes(directory / "metrics.csv", "".join(lines).encode())
        for name in COPIED:
            if (found.run / name).exists():
                replace_bytes(directory / name, (found.run / name).read_bytes())
        replace_bytes(directory / "summary.json", (json.dumps(summary, indent=2) + "\n").encode())
        replace_bytes(directory / "DONE", b"")
    except OSError as error:
        raise InputError(f"--output {directory} cannot be written: {error.strerror}") from None


def is_retimed(directory: Path) -> bool:
    """Return whether a directory is one that ``write`` has made."""
    path = directory / "summary.json"
    return path.is_file() and RETIMED in read_summary(path)
