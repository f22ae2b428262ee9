"""Run directories in the promised format, written without running anything."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml

HEADER = (
    "round,seconds,train_loss,train_accuracy,test_loss,test_accuracy,test_accuracy_p10,"
    "test_accuracy_min,test_accuracy_std,active_clients,up_bits,down_bits,consensus_distance,"
    "state_digest"
)


def configuration(**changes: Any) -> dict[str, Any]:
    base = {
        "experiment": "synthetic-fedem",
        "seed": 0,
        "clients": 4,
        "rounds": 40,
        "data": {"name": "synthetic", "variant": "paper"},
        "model": {"name": "linear"},
        "algorithm": {"name": "fedem", "n_components": 3},
        "local": {"lr": 0.1},
        "exchange": {"name": "server"},
        "compression": {"name": "none"},
        "evaluation": {"every": 10},
        "checkpoint": {"every": 50, "keep": 2},
    }
    return base | changes


def write_run(
    path: Path,
    *,
    final: float = 0.75,
    bits: float = 1e6,
    finished: bool = True,
    until: int = 40,
    distances: Callable[[int], float] | None = None,
    predicted: dict[str, float] | None = None,
    graph: dict[str, float] | None = None,
    **changes: Any,
) -> Path:
    """A run whose accuracy climbs to ``final`` and whose bottom decile is 0.1 below.

    ``distances`` gives the distance from consensus at a round, ``predicted`` what summary.json says
    of it.
    """
    path.mkdir(parents=True)
    (path / "config.yaml").write_text(yaml.safe_dump(configuration(**changes)))
    lines = [HEADER]
    for k in range(0, until + 1, 10):
        accuracy = final - 0.25 * np.exp(-k / 12)
        loss = 0.45 + 0.25 * np.exp(-k / 15)
        lines.append(
            f"{k},{k / 10},{loss},{accuracy},{loss},{accuracy},{accuracy - 0.1},"
            f"{accuracy - 0.2},0.05,4,{k * bits},{k * bits},"
            f"{'' if distances is None else distances(k)},{'0' * 64}"
        )
    (path / "metrics.csv").write_text("\n".join(lines) + "\n")
    if finished:
        with h5py.File(path / "clients.h5", "w") as file:
            file["client_id"] = np.arange(4)
            file["test_accuracy"] = final + np.array([0.05, -0.1, 0.02, 0.03])
        summary = {
            "status": "finished",
            "rounds": until,
            "seconds": {"total": 12.5},
            "predicted_contraction": predicted,
            "graph": graph or {},
        }
        (path / "summary.json").write_text(json.dumps(summary))
        (path / "DONE").touch()
    return path


def fill_columns(path: Path, fill: Callable[[list[dict[str, str]]], None]) -> Path:
    """The run in ``path`` after ``fill`` has put columns into the rows of its metrics.csv."""
    with (path / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    fill(rows)
    with (path / "metrics.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path
