"""The cost of importing, and environments that are copied only where that takes less time."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, fake_slurm
from hypothesis import given
from hypothesis import strategies as st
from test_jobs_script import ended, script

from mpifed.errors import InputError, RunError
from mpifed.jobs import importing
from mpifed.jobs.importing import Cost, cost, main, seconds_to_copy


def test_an_import_is_measured_in_a_process_of_its_own():
    found = cost()
    # A module that is imported from a file is looked up at least once; torch alone has as many.
    assert found.paths > 1000
    assert found.user + found.system > 0
    assert found.seconds > 0


@given(paths=st.integers(0, 10**6), ranks=st.integers(1, 10**5))
def test_ranks_look_up_as_many_paths_each(paths, ranks):
    said = Cost(1.0, 0.5, 0.5, paths).of_ranks(ranks)
    assert f"looks up {paths:,} paths" in said
    assert (f"{ranks} ranks look up {paths * ranks:,}" in said) == (ranks > 1)


@pytest.mark.parametrize("python", ["/no/python", "false"])
def test_a_python_that_cannot_import_is_named(python):
    with pytest.raises(RunError, match=f"{python} cannot import mpifed"):
        cost(python)


def test_a_copy_is_estimated_from_its_first_bytes(tmp_path, monkeypatch):
    ticks = iter([10.0, 11.0])
    monkeypatch.setattr("time.perf_counter", lambda: next(ticks))
    archive = tmp_path / "archive"
    archive.write_bytes(bytes(12 << 20))
    assert seconds_to_copy(archive, tmp_path, probe=4 << 20) == pytest.approx(3.0)
    assert list(tmp_path.iterdir()) == [archive]


def test_what_cannot_be_copied_is_refused(tmp_path, capfd):
    with pytest.raises(InputError, match="cannot be copied"):
        seconds_to_copy(tmp_path / "none", tmp_path)
    assert main([str(tmp_path / "none"), str(tmp_path)]) == 2
    assert main([]) == 2
    assert capfd.readouterr().err.count("\n") == 2


@pytest.mark.parametrize("copying", [0.5, 5.0])
def test_the_faster_way_is_said(copying, monkeypatch, capfd):
    monkeypatch.setattr(importing, "seconds_to_copy", lambda *_: copying)
    monkeypatch.setattr(importing, "cost", lambda: Cost(2.0, 1.5, 0.5, 9000))
    assert main(["archive", "place"]) == (0 if copying < 2 else 1)
    said = capfd.readouterr().out
    assert ("staging is faster" in said) == (copying < 2)
    assert "importing takes 2.0 s" in said
    assert "9,000 paths" in said


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    found = fake_slurm(tmp_path / "slurm")
    found.answer("queue", "RUNNING\n")
    return found


@pytest.mark.parametrize(("status", "staged"), [(0, True), (1, False), (2, True)])
def test_a_job_stages_where_that_is_faster(status, staged, slurm: FakeSlurm, tmp_path: Path):
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/bash\necho measured by $2\nexit {status}\n")
    python.chmod(0o700)
    archive, scratch = tmp_path / "env.tar", tmp_path / "scratch"
    scratch.mkdir()
    subprocess.run(["tar", "-C", tmp_path, "-cf", archive, "bin"], check=True, timeout=30)
    words = [f"job.stage={archive}", f"job.scratch={scratch}", "job.stage_when=faster"]
    code, said = ended(slurm, script(tmp_path, "touch DONE", *words, f"job.python={python}"))
    assert code == 0, said
    assert "measured by mpifed.jobs.importing" in said
    assert (f"unpacked {archive}" in said) == staged
    used = (tmp_path / "launched").read_text()
    assert (f"{scratch}/mpifed-7-" in used) == staged
    assert list(scratch.iterdir()) == []
