"""What clients cost, for dealing them to ranks: samples of their steps, or seconds of a run."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

import numpy as np

from mpifed.config.configuration import Configuration
from mpifed.data.base import Description
from mpifed.errors import InputError
from mpifed.federation.clients import Federation
from mpifed.io.text import read_text
from mpifed.local.minibatches import work_of

TIMING = "timing.csv"
HEAD = "client,seconds"


def samples_of_steps(configuration: Configuration, description: Description) -> np.ndarray:
    """Return the samples that each client visits in a round, scoring included: float64
    (clients,).
    """
    local, n_train = configuration.local, description.n_train
    work = work_of(n_train, local.batch_size, local.epochs, local.steps, local.sampling)
    scored = description.n_test + (description.n_val if configuration.evaluation.validates else 0)
    mean = np.maximum(n_train, 1) / np.maximum(work.per_epoch, 1)  # samples of a minibatch
    return work.steps * mean + scored / configuration.evaluation.every + 1e-9


def work_for_balance(configuration: Configuration, description: Description) -> np.ndarray:
    """Return the work of each client that ``placement=balanced`` evens out, float64 (clients,)."""
    if configuration.placement_costs is None:
        return samples_of_steps(configuration, description)
    return read_costs(Path(configuration.placement_costs), description.n_clients)


def read_costs(path: Path, n_clients: int) -> np.ndarray:
    """Return the seconds of each client in a file that a run wrote, float64 (n_clients,)."""
    path = path / TIMING if path.is_dir() else path
    try:
        first, *rows = csv.reader(io.StringIO(read_text(path)))
        seconds = [float(row[1]) for row in rows]
        known = ",".join(first) == HEAD and [row[0] for row in rows] == [
            *map(str, range(len(rows)))
        ]
    except (ValueError, IndexError, csv.Error):
        known, seconds = False, []
    if not known or not all(math.isfinite(value) and value >= 0 for value in seconds):
        raise InputError(
            f"placement_costs: {path} is not the {TIMING} of a run, whose lines are a client and "
            "its seconds"
        )
    if len(seconds) != n_clients:
        raise InputError(
            f"placement_costs: {path} has {len(seconds)} clients, but the run has {n_clients}"
        )
    return np.array(seconds) + 1e-12


def seconds_of_clients(
    configuration: Configuration, description: Description, federation: Federation, seconds: float
) -> str | None:
    """Return the content of ``timing.csv`` on rank 0; None elsewhere. Collective."""
    every = federation.communicator.gather_object(seconds)
    if every is None:
        return None
    work, owner = samples_of_steps(configuration, description), federation.owner
    by_rank = np.bincount(owner, work, minlength=len(every))
    return as_text(np.array(every)[owner] * work / by_rank[owner])


def as_text(seconds: np.ndarray) -> str:
    r"""Return the content of the file of these seconds."""
    lines = [f"{client},{value:.6g}" for client, value in enumerate(seconds.tolist())]
    return "\n".join([HEAD, *lines]) + "\n"
