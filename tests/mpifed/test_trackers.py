"""Runs that are sent to the trackers of docs/tracking.md themselves, without a network."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import TINY, environment, launch

ROUNDS = [0, 2, 4, 6]

pytestmark = pytest.mark.slow
"""They import large packages, which scripts/test --all installs."""


def rows_of(place: Path) -> dict[str, list[str]]:
    lines = [line.split(",") for line in (place / "metrics.csv").read_text().splitlines()]
    return dict(zip(lines[0], map(list, zip(*lines[1:], strict=True)), strict=True))


def tracked(name: str, place: Path, ranks: int = 0, **variables: str) -> None:
    """A run of four rounds, resumed for two more."""
    pytest.importorskip(name)
    words = [*TINY, "--output", place, "--track", name]
    for more in ([], ["rounds=6", "--resume"]):
        done = launch(ranks, *words, *more, seconds=120, **variables)
        assert done.code == 0, done.err
        assert "warning" not in (place / "log.txt").read_text()


def test_tensorboard_reads_back_what_was_recorded(tmp_path: Path) -> None:
    tracked("tensorboard", tmp_path / "run", ranks=2)
    program = (
        "import json, sys\n"
        "from tensorboard.backend.event_processing.event_accumulator import EventAccumulator\n"
        "read = EventAccumulator(sys.argv[1])\n"
        "read.Reload()\n"
        "print(json.dumps({t: [(e.step, e.value) for e in read.Scalars(t)] "
        "for t in read.Tags()['scalars']}))\n"
    )
    words = [sys.executable, "-c", program, str(tmp_path / "run" / "tensorboard")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=True)
    found, rows = json.loads(done.stdout), rows_of(tmp_path / "run")
    assert [step for step, _ in found["test_accuracy"]] == ROUNDS
    values = [value for _, value in found["train_loss"]]
    assert values == pytest.approx(list(map(float, rows["train_loss"])), rel=1e-6)  # float32
    assert "state_digest" not in found and "consensus_distance" not in found
    # Of one rank alone: a file for each part of the run.
    assert len(list((tmp_path / "run" / "tensorboard").iterdir())) == 2


def test_mlflow_keeps_one_run_in_a_local_store(tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    from mlflow.tracking import MlflowClient

    store = f"sqlite:///{tmp_path / 'mlflow.db'}"
    tracked("mlflow", tmp_path / "run", MLFLOW_TRACKING_URI=store)
    client = MlflowClient(store)
    experiment = client.get_experiment_by_name("mpifed")
    (run,) = client.search_runs([experiment.experiment_id])
    assert (run.info.status, run.info.run_name) == ("FINISHED", "run")
    assert run.data.params["algorithm.name"] == "fedem" and run.data.params["clients"] == "4"
    history = client.get_metric_history(run.info.run_id, "test_loss")
    assert [metric.step for metric in history] == ROUNDS
    expected = list(map(float, rows_of(tmp_path / "run")["test_loss"]))
    assert [metric.value for metric in history] == expected


def test_wandb_writes_offline_runs_of_one_id(tmp_path: Path) -> None:
    tracked("wandb", tmp_path / "run", WANDB_MODE="offline", HOME=str(tmp_path))
    (known,) = json.loads((tmp_path / "run" / "tracking.json").read_text()).values()
    parts = sorted((tmp_path / "run" / "wandb").glob("offline-run-*"))
    assert len(parts) == 2 and all(part.name.endswith(f"-{known}") for part in parts)
    for part in parts:
        assert b"test_accuracy" in (part / f"run-{known}.wandb").read_bytes()


def test_wandb_without_a_login_is_dropped_and_asks_nothing(tmp_path: Path) -> None:
    """Also in a terminal, where it would wait for an answer."""
    pytest.importorskip("wandb")
    ours, theirs = os.openpty()
    variables = environment(HOME=str(tmp_path), NETRC=str(tmp_path / "netrc"), WANDB_MODE="online")
    variables.pop("WANDB_API_KEY", None)
    words = [sys.executable, "-m", "mpifed.run", *TINY, "--quiet", "--track", "wandb"]
    done = subprocess.run(
        [*words, "--output", str(tmp_path / "run")],
        stdin=theirs,
        stdout=subprocess.PIPE,
        stderr=theirs,
        timeout=120,
        env=variables,
    )
    os.close(ours), os.close(theirs)
    assert done.returncode == 0
    lines = (tmp_path / "run" / "log.txt").read_text().splitlines()
    (said,) = [line for line in lines if line.startswith("warning")]
    assert re.search("wandb.*API key", said)


def test_a_tracker_that_never_answers_ends_neither_late_nor_badly(tmp_path: Path) -> None:
    """A module in place of wandb, whose threads never end, and which has a shorter time for it."""
    (tmp_path / "wandb.py").write_text(
        "import time\nfrom mpifed import tracking\ntracking.PATIENCE = 3.0\n"
        "class Settings:\n    def __init__(self, **options): pass\n"
        "def setup(settings): pass\ndef init(**options): time.sleep(10000)\n"
    )
    words = [*TINY, "--output", tmp_path / "run", "--track", "wandb"]
    path = os.pathsep.join([str(tmp_path), environment()["PYTHONPATH"]])
    done = launch(2, *words, seconds=120, PYTHONPATH=path)
    assert done.code == 0, done.err
    lines = (tmp_path / "run" / "log.txt").read_text().splitlines()
    (said,) = [line for line in lines if line.startswith("warning")]
    assert re.search(r"wandb.*\b3 s\b", said)
