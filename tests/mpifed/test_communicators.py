"""``mpifed.run`` on communicators of the caller's."""

from __future__ import annotations

from pathlib import Path

import pytest
from on_ranks import SMALL, differences, folder_of, run

import mpifed
from mpifed.errors import InputError
from mpifed.testing import world

RUNS = ({"exchange.name": "server"}, {"exchange.name": "gossip", "seed": 3})


@pytest.mark.mpi
def test_runs_side_by_side_give_the_files_that_each_gives_alone(tmp_path):
    from mpi4py import MPI

    job, folder = MPI.COMM_WORLD, folder_of(tmp_path)
    # What waits for any message must not take one of the run.
    message, waits = bytearray(8), job.Irecv([bytearray(8), MPI.BYTE], MPI.ANY_SOURCE, MPI.ANY_TAG)
    which = job.rank % 2 if job.size > 1 else 0
    part = job.Split(which)
    told = {**SMALL, **RUNS[which]}
    for name in ("first", "again"):
        result = mpifed.run("synthetic-fedem", output=folder / f"{name}-{which}", comm=part, **told)
        assert result.status == "finished" and result.summary["ranks"] == part.size
    part.Free()
    job.Send([message, MPI.BYTE], (job.rank + 1) % job.size)
    waits.Wait()
    found = []
    if job.rank == 0:
        for which, more in list(enumerate(RUNS))[: job.size]:
            run("synthetic-fedem", {**SMALL, **more}, folder / f"alone-{which}")
            for name in ("first", "again"):
                found += differences(folder / f"{name}-{which}", folder / f"alone-{which}")
    assert world().broadcast_object(found) == []


@pytest.mark.mpi
def test_a_run_on_some_ranks_leaves_the_others_alone(tmp_path):
    from mpi4py import MPI

    job, folder = MPI.COMM_WORLD, folder_of(tmp_path)
    part = job.Split(0 if job.rank < max(1, job.size - 1) else MPI.UNDEFINED)
    if part != MPI.COMM_NULL:
        result = mpifed.run("synthetic-fedem", output=folder / "part", comm=part, **SMALL)
        assert result.summary["ranks"] == part.size
    else:
        with pytest.raises(InputError, match=r"comm .*intracommunicator"):
            mpifed.run("synthetic-fedem", comm=part)
    job.barrier()


@pytest.mark.mpi
@pytest.mark.parametrize("size", [0, 900, 1100, 70_000])
@pytest.mark.parametrize("piece", [1 << 28, 1 << 12])
def test_objects_of_any_size_reach_whom_they_are_for(size, piece, monkeypatch):
    """Also those of several messages, of which each has at most ``piece`` bytes."""
    monkeypatch.setattr("mpifed.mpi.over_mpi4py.PIECE", piece)
    communicator = world()
    every = communicator.gather_object({"rank": communicator.rank, "text": size * "x"})
    if communicator.rank == 0:
        ranks = range(communicator.size)
        assert every == [{"rank": rank, "text": size * "x"} for rank in ranks]
    else:
        assert every is None
    for root in range(communicator.size):
        value = (communicator.rank, size * "y") if communicator.rank == root else None
        assert communicator.broadcast_object(value, root) == (root, size * "y")


def test_the_page_splits_the_job_as_the_tests_do():
    page = Path(__file__).parents[2] / "docs" / "running.md"
    assert "comm=MPI.COMM_WORLD.Split(part), output=" in page.read_text()


def test_ranks_and_a_communicator_exclude_each_other():
    with pytest.raises(InputError, match=r"comm .*ranks "):
        mpifed.run("synthetic-fedem", comm=object(), ranks=2)
