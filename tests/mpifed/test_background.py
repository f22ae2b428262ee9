"""Checkpoints written beside the run: what is written, when, and what happens if it fails."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import STORED, TINY, checkpoints, launch, rows, summary_of
from torch import Tensor

from mpifed import state
from mpifed.checkpoint import files as checkpoint
from mpifed.checkpoint.background import Writer
from mpifed.checkpoint.files import PIECE, Meta, path_of
from mpifed.errors import PeerFailure, RunError
from mpifed.federation.federation import Federation
from mpifed.mpi.communicator import Alone, world


@dataclass(frozen=True)
class State:
    mixture: Tensor = state.client()
    model: Tensor = state.server()


N = 6


def federation(communicator=None) -> Federation:
    communicator = communicator or Alone()
    clients = np.arange(N)
    return Federation(communicator, clients % communicator.size, clients < 0, clients + 1)


def value(number: float, hosted=None) -> State:
    numbers = torch.arange(N * 4.0).view(N, 4) + number
    return State(numbers if hosted is None else numbers[hosted], torch.full((3,), float(number)))


def about(round: int) -> Meta:
    return Meta(round, 0, 1, {**STORED, "clients": N}, "round\n0\n", {"up_bits": 0}, {"total": 0.0})


def begin(writer: Writer, folder: Path, round: int, what: State, keep: int = 2) -> None:
    writer.start(path_of(folder, round), about(round), what, False, {}, keep)


def stored(folder: Path, round: int, hosted=None) -> State:
    hosted = np.arange(N) if hosted is None else hosted
    blank = State(torch.zeros(len(hosted), 4), torch.zeros(3))
    return checkpoint.read_state(path_of(folder, round), blank, False, hosted)


@pytest.fixture
def held(monkeypatch):
    """The disk, which takes nothing before it is let go."""
    let_go = threading.Event()
    flush = os.fsync

    def wait(descriptor):
        let_go.wait(20)
        flush(descriptor)

    monkeypatch.setattr("os.fsync", wait)
    yield let_go
    let_go.set()


def test_the_run_goes_on_while_the_state_of_the_round_is_written(tmp_path, held):
    writer, first = Writer(federation()), value(0.5)
    begin(writer, tmp_path, 1, first)
    assert not path_of(tmp_path, 1).exists()
    # What the run does to its state from now on is not the state of that round.
    first.mixture.zero_()
    first.model.zero_()
    held.set()
    writer.finish()
    found = stored(tmp_path, 1)
    assert torch.equal(found.mixture, value(0.5).mixture)
    assert torch.equal(found.model, value(0.5).model)


def test_never_two_at_once(tmp_path, held):
    writer = Writer(federation())
    begin(writer, tmp_path, 1, value(1))
    second = threading.Thread(target=begin, args=(writer, tmp_path, 2, value(2)))
    second.start()
    second.join(0.3)
    # The second waits, and has not yet copied over what the first still writes.
    assert second.is_alive() and not list(tmp_path.glob("round-*"))
    held.set()
    second.join(20)
    writer.finish()
    for round in (1, 2):
        assert torch.equal(stored(tmp_path, round).mixture, value(round).mixture)


def test_a_failure_is_raised_at_the_next_occasion_and_the_older_one_stays(tmp_path, monkeypatch):
    writer = Writer(federation())
    begin(writer, tmp_path, 1, value(1))
    writer.finish()
    with monkeypatch.context() as patch:

        def refuse(*arguments):
            raise OSError(28, "No space left on device")

        patch.setattr("os.posix_fallocate", refuse)
        begin(writer, tmp_path, 2, value(2))
        writer.settle()
        assert writer.failed
        with pytest.raises(RunError, match=r"No space left on device.*round-000001\.h5.*--resume"):
            begin(writer, tmp_path, 3, value(3))
    assert [path.name for path in tmp_path.iterdir()] == ["round-000001.h5"]


def test_rows_longer_than_a_piece(tmp_path, monkeypatch):
    monkeypatch.setattr("mpifed.checkpoint.files.PIECE", 7)
    writer = Writer(federation())
    begin(writer, tmp_path, 1, value(1))
    writer.finish()
    checkpoint.read_meta(path_of(tmp_path, 1))
    assert torch.equal(stored(tmp_path, 1).mixture, value(1).mixture)


# Several ranks.


@pytest.mark.mpi
@pytest.mark.parametrize("piece", [PIECE, 40, 7])
def test_ranks_send_their_rows_while_they_go_on(piece, tmp_path, monkeypatch):
    monkeypatch.setattr("mpifed.checkpoint.files.PIECE", piece)
    communicator = world()
    folder = Path(communicator.broadcast_object(str(tmp_path)))
    mine = federation(communicator)
    writer = Writer(mine)
    for round in (1, 2, 3):
        begin(writer, folder, round, value(round, torch.from_numpy(mine.hosted)))
        # Other messages meanwhile.
        assert communicator.max(np.array([communicator.rank])) == communicator.size - 1
    writer.finish()
    communicator.barrier()
    found = stored(folder, 3, mine.hosted)
    assert torch.equal(found.mixture, value(3).mixture[torch.from_numpy(mine.hosted)])
    assert torch.equal(found.model, value(3).model)
    assert communicator.bytes_sent >= (0 if communicator.rank == 0 else 3 * 16)


@pytest.mark.mpi
def test_a_full_disk_reaches_every_rank(tmp_path, monkeypatch):
    communicator = world()
    folder = Path(communicator.broadcast_object(str(tmp_path)))
    mine = federation(communicator)
    writer = Writer(mine)

    def refuse(*arguments):
        raise OSError(28, "No space left on device")

    if communicator.rank == 0:
        monkeypatch.setattr("os.posix_fallocate", refuse)
    begin(writer, folder, 1, value(1, torch.from_numpy(mine.hosted)))
    expected = RunError if communicator.rank == 0 else PeerFailure
    with pytest.raises(expected):
        writer.finish()
    communicator.barrier()


@pytest.mark.slow
def test_an_mpi_that_takes_one_thread_only(tmp_path):
    words = [*TINY, "exchange=gossip", "--quiet", "--output"]
    one, two = tmp_path / "one", tmp_path / "two"
    outcome = launch(2, *words, two, MPI4PY_RC_THREAD_LEVEL="serialized")
    assert (outcome.code, outcome.messages) == (0, [])
    assert launch(0, *words, one).code == 0
    assert rows(one) == rows(two)
    assert checkpoints(one) == checkpoints(two)
    assert "MPI_THREAD_MULTIPLE" in (two / "log.txt").read_text()
    assert summary_of(one)["state_digest"] == summary_of(two)["state_digest"]
