"""The memory of a round is compared with what there is, by the dry run as by the run."""

from __future__ import annotations

import os
import signal
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import in_child, rows
from hypothesis import given, settings
from hypothesis import strategies as st
from on_ranks import SMALL, differences, folder_of, run

from mpifed import state
from mpifed.algorithms.global_model.scaffold import ScaffoldState
from mpifed.checkpoint.row_file import RowFile
from mpifed.errors import RunError
from mpifed.local.optimizers import RULES, SgdState, unwritten
from mpifed.local.options import LocalOptions
from mpifed.models.mlp import Mlp
from mpifed.mpi.communicator import Alone, world
from mpifed.training.run_directory import Recorder

PAGES = 1 << 26
"""Numbers of a state that is measured, 256 MiB."""


def resident() -> int:
    """Bytes of this process that are not shared with files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = (line.split()[1] for line in lines if line.startswith("RssAnon:"))
    return int(found) * 1024


@pytest.mark.parametrize("optimizer", RULES)
def test_moments_take_no_memory_before_a_client_steps(optimizer):
    options = LocalOptions(optimizer=optimizer, momentum=0.9 if optimizer == "sgd" else 0.0)
    before = resident()
    rule = RULES[optimizer](options, Mlp((3, 4, 2)))
    moments = rule.moments(rule.init(64, 1, PAGES // 64, torch.zeros(0)))
    assert all(moment.shape == (64, 1, PAGES // 64) for moment in moments)
    assert resident() - before < PAGES * 4 / 16
    moments[0][:16] = 1
    assert resident() - before < PAGES * 4 / 2


def test_rows_that_are_on_disk_are_not_kept_in_memory(tmp_path):
    recorder = Recorder(tmp_path / "run", ["round", "train_loss"], [["0", "2.5"]], "", int, True)
    tracemalloc.start()
    for round in range(1, 1001):
        recorder.row({"round": round, "train_loss": 1 / round})
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    recorder.close()
    assert grown < 1e4
    lines = ["round,train_loss", "0,2.5", *(f"{k},{1 / k!r}" for k in range(1, 1001))]
    tracemalloc.start()
    text = recorder.metrics
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert text.splitlines() == lines and most < 10 * len(text)


def test_a_checkpoint_takes_little_for_a_recorded_round(tmp_path):
    options = {**SMALL, "rounds": 60, "evaluation.every": 1, "checkpoint.every": 10}
    run("synthetic-fedem", {**options, "checkpoint.keep": 6}, tmp_path / "run", Alone())
    folder = tmp_path / "run" / "checkpoints"
    first, last = ((folder / f"round-{at:06d}.h5").stat().st_size for at in (10, 60))
    of_a_row = (tmp_path / "run" / "metrics.csv").stat().st_size / 61
    assert last - first < 50 * of_a_row


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unwritten_zeros_are_zeros(dtype):
    found = unwritten(torch.ones(0, dtype=dtype), 3, 0, 5)
    assert (found.shape, found.dtype) == ((3, 0, 5), dtype)
    assert np.array_equal(unwritten(torch.ones(0, dtype=dtype), 2, 3), np.zeros((2, 3)))


# States of clients on disk: the same run, bit for bit, also after a kill.


DISK = {"storage.state": "disk"}
CASES = {
    "scaffold": {"algorithm": "scaffold", "participation": 0.5, "local.momentum": 0.0},
    "momentum": {"algorithm": "fedavg", "participation": 0.5},
    "everyone": {"algorithm": "fedavg"},
    "fedem": {"participation": 0.5, "storage.samples": 0, "evaluation.sample": 0.5},
    "gossip": {"exchange": "gossip", "participation": 0.6},
    "unseen": {"algorithm": "fedper", "model": "mlp", "evaluation.unseen_fraction": 0.3},
    "adam": {"local.optimizer": "adam", "local.momentum": 0.0, "participation": 0.5},
    "feedback": {
        "algorithm": "fedavg",
        "compression": {"name": "top_k", "k": 3},
        "participation": 0.5,
    },
    "dropping": {"algorithm": "fedavg", "on_divergence": "drop", "participation": 0.5},
    "prepared": {
        "algorithm": "diana",
        "algorithm.l2": 0.1,
        "compression": {"name": "rand_k", "k": 3},
    },
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_on_disk_is_that_in_memory(case, tmp_path):
    overrides = {**SMALL, "data.n_test": 10, **CASES[case]}
    run("synthetic-fedem", overrides, tmp_path / "memory", Alone())
    run("synthetic-fedem", {**overrides, **DISK}, tmp_path / "disk", Alone())
    assert differences(tmp_path / "memory", tmp_path / "disk") == []
    left = {path.name for path in tmp_path.rglob("*") if path.name.startswith(".")}
    assert left == set()


@pytest.mark.mpi
@pytest.mark.parametrize("case", ["scaffold", "fedem", "gossip"])
def test_rows_of_several_ranks_on_disk(case, tmp_path):
    communicator, folder = world(), folder_of(tmp_path)
    overrides = {**SMALL, "data.n_test": 10, **CASES[case]}
    run("synthetic-fedem", {**overrides, **DISK}, folder / "disk", communicator)
    found = None
    if communicator.rank == 0:
        run("synthetic-fedem", overrides, folder / "memory", Alone())
        found = differences(folder / "memory", folder / "disk")
    assert communicator.broadcast_object(found) == []


@pytest.mark.parametrize("first", ["disk", "memory"])
def test_a_resumed_run_may_keep_its_rows_elsewhere(first, tmp_path):
    overrides = {**SMALL, "data.n_test": 10, **CASES["scaffold"]}
    other = {"disk": "memory", "memory": "disk"}[first]
    run("synthetic-fedem", {**overrides, "rounds": 6}, tmp_path / "whole", Alone())
    begun = {**overrides, "rounds": 4, "storage.state": first}
    run("synthetic-fedem", begun, tmp_path / "cut", Alone())
    rest = {**overrides, "rounds": 6, "storage.state": other}
    run("synthetic-fedem", rest, tmp_path / "cut", Alone(), resume=True)
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")


def test_a_killed_run_resumes_from_a_consistent_checkpoint(tmp_path):
    overrides = {**SMALL, "data.n_test": 10, "rounds": 6, **CASES["scaffold"], **DISK}
    run("synthetic-fedem", overrides, tmp_path / "whole", Alone())

    def killed() -> int:
        from mpifed.training.engine import Engine

        advance = Engine.advance

        def once(engine) -> None:
            advance(engine)
            if engine.round == 5:  # rows of round 5 are on disk, the checkpoint is of round 4
                os.kill(os.getpid(), signal.SIGKILL)

        Engine.advance = once
        run("synthetic-fedem", overrides, tmp_path / "cut", Alone())
        return 0

    assert in_child(killed, 120) == -signal.SIGKILL
    run("synthetic-fedem", overrides, tmp_path / "cut", Alone(), resume=True)
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")


def made(n: int, width: int, seed: int) -> ScaffoldState:
    draw = torch.Generator().manual_seed(seed)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=draw)

    optimizer = SgdState(numbers(n, 1, 0), torch.arange(n))
    fields = {"model": numbers(1, width), "variate": numbers(1, width)}
    return ScaffoldState(variates=numbers(n, 1, width), optimizer=optimizer, **fields)


@settings(max_examples=30)
@given(
    n=st.integers(0, 9),
    width=st.integers(1, 4),
    moved=st.lists(st.lists(st.integers(0, 8), unique=True).map(sorted), max_size=4),
)
def test_held_rows_follow_their_rounds(n, width, moved, tmp_path_factory):
    file = RowFile(tmp_path_factory.getbasetemp())
    expected = made(n, width, 0)
    held = file.hold(made(n, width, 0), False)
    for number, asked in enumerate(moved):
        rows = torch.tensor([row for row in asked if row < n], dtype=torch.int64)
        part = made(len(rows), width, number + 1)
        own = [tensor for _, tensor, is_rows in state.tensors(held, False) if is_rows]
        held = state.merge(held, part, rows, False, own)
        expected = state.merge(expected, part, rows, False)
        file.release()
    found = {name: t for name, t, _ in state.tensors(held, False)}
    for name, tensor, _ in state.tensors(expected, False):
        assert torch.equal(found[name], tensor)


def test_a_full_disk_is_said_before_a_row_is_written(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(RunError, match=r"no room for .*; storage.directory names another place"):
        RowFile(tmp_path).hold(made(3, 2, 0), False)
