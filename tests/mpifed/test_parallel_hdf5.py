"""Checkpoints that every rank writes into, by an h5py with parallel HDF5.

``scripts/parallel_hdf5/install`` makes the environment and prints the variables that name it.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass

import pytest
from commands import (
    HERE,
    TINY,
    Outcome,
    checkpoints,
    environment,
    mounted,
    rows,
    started,
    summary_of,
)
from test_checkpoint import content, meta, of

from mpifed.checkpoint import files as checkpoint

pytestmark = pytest.mark.parallel_hdf5

RANKS = 4
WORDS = ["-m", "mpifed.run", *TINY, "clients=9", "exchange=gossip", "--quiet", "--output"]


@dataclass(frozen=True)
class Installed:
    """Another interpreter and its launcher."""

    python: str
    mpirun: str

    def outcome(self, ranks: int, *words, **variables: str) -> Outcome:
        """How the command ends, within 120 s."""
        front = [self.mpirun, "-n", str(ranks)] if ranks else []
        more = {"PYTHONPATH": f"{HERE}:{HERE.parent.parent}", **variables}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        line = [*front, self.python, *map(str, words)]
        with started(line, env=environment(**more), **pipes) as process:
            out, error = process.communicate(timeout=120)
        return Outcome(process.returncode, out, error)

    def __call__(self, ranks: int, *words, expected: int = 0, **variables: str) -> str:
        """What the command says on standard error."""
        outcome = self.outcome(ranks, *words, **variables)
        assert outcome.code == expected, outcome
        return outcome.err


@pytest.fixture
def on() -> Installed:
    python = os.environ.get("MPIFED_PARALLEL_HDF5_PYTHON")
    if not python:
        pytest.skip("MPIFED_PARALLEL_HDF5_PYTHON names no interpreter with parallel HDF5")
    mpirun = os.environ.get("MPIFED_PARALLEL_HDF5_MPIRUN") or shutil.which("mpirun")
    return Installed(python, mpirun)


def test_ranks_write_the_same_files_together(on, tmp_path):
    code = (
        "import sys, pathlib, test_checkpoint as here\n"
        "assert here.checkpoint.writes_together(here.world()), 'no parallel HDF5'\n"
        "here.check_that_ranks_write_what_one_writes(pathlib.Path(sys.argv[1]))\n"
    )
    on(RANKS, "-c", code, tmp_path / "files")
    written = sorted((tmp_path / "files").glob("many-*/*.h5"))
    assert len(written) == 8
    for path in written:
        # Read by this interpreter, whose h5py may have no parallel HDF5 and is of another version.
        found = checkpoint.read_meta(path)
        assert found == of(found.configuration["clients"], meta())
        one = path.parent.parent / path.parent.name.replace("many", "one") / path.name
        assert content(path) == content(one)


def test_runs_go_on_on_other_numbers_of_ranks(on, tmp_path):
    on(RANKS, *WORDS, tmp_path / "cut")
    on(0, *WORDS, tmp_path / "cut", "--resume", "rounds=6")
    on(2, *WORDS, tmp_path / "cut", "--resume", "rounds=8")
    on(0, *WORDS, tmp_path / "whole", "rounds=8")
    assert rows(tmp_path / "cut") == rows(tmp_path / "whole")
    names = (checkpoints(tmp_path / name) for name in ("cut", "whole"))
    assert list(names) == [["round-000006.h5", "round-000008.h5"]] * 2


def test_checkpoints_are_written_while_the_run_goes_on(on, tmp_path):
    """Two threads of every rank speak MPI at once; the run ends as one process does."""
    many = [*WORDS, tmp_path / "many", "rounds=40", "checkpoint.every=1"]
    assert on(RANKS, *many) == ""
    on(0, *WORDS, tmp_path / "one", "rounds=40", "checkpoint.every=40")
    assert rows(tmp_path / "many") == rows(tmp_path / "one")
    log = (tmp_path / "many" / "log.txt").read_text()
    assert "MPI_THREAD_MULTIPLE" not in log


def test_a_killed_job_goes_on(on, tmp_path):
    target = tmp_path / "cut"
    words = [*WORDS, target, "rounds=8", "algorithm=user_components:Fails"]
    outcome = on.outcome(RANKS, *words, FAIL="die:2:7")
    assert outcome.code != 0
    (line,) = outcome.messages
    assert re.search("mpifed: rank 2 .*round 7.*SIGKILL", line)
    on(3, *words, "--resume")
    on(0, *WORDS, tmp_path / "whole", "rounds=8", "algorithm=user_components:Fails")
    assert rows(target) == rows(tmp_path / "whole")


def test_a_full_disk_is_one_sentence(on, tmp_path):
    place = tmp_path / "small"
    words = ["clients=40", "data.dimension=2000", "checkpoint.every=1", "rounds=30"]
    with mounted(place, "-t", "tmpfs", "-o", "size=3m", "tmpfs"):
        outcome = on.outcome(RANKS, *WORDS, place / "run", *words, "checkpoint.keep=9")
        assert outcome.code == 1, outcome
        (line,) = outcome.messages
        assert "No space left on device" in line


def test_asked_to_stop(on, tmp_path):
    target = tmp_path / "cut"
    words = [*WORDS, target, "algorithm=user_components:Fails", "checkpoint.every=100"]
    error = on(RANKS, *words, expected=75, FAIL="receive_usr1:3:3")
    assert error == "" or "mpifed:" not in error
    assert summary_of(target)["status"] == "stopped"
    assert checkpoints(target) == ["round-000003.h5"]
