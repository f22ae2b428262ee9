"""What a job does when its launcher ends, for whatever reason: the script itself, under bash."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, fake_slurm

from mpifed.jobs import render
from mpifed.jobs.plan import plan

STOPPED = '{"status": "stopped"}'


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    found = fake_slurm(tmp_path / "slurm")
    found.answer("queue", "RUNNING\n")
    return found


def launcher(tmp_path: Path, body: str) -> Path:
    """An mpirun whose ranks do what ``body`` says in the run directory."""
    path = tmp_path / "mpirun"
    path.write_text(
        f'#!/bin/bash\nprintf "%s " "$@" >>"{tmp_path}/launched"\ncd "{tmp_path}/run"\n{body}\n'
    )
    path.chmod(0o700)
    return path


def script(tmp_path: Path, body: str, *words: str) -> str:
    mine = ["job.ranks=2", f"job.mpirun={launcher(tmp_path, body)}", *words]
    return render.script(plan(mine, None, tmp_path / "run", False))


@contextmanager
def begun(slurm: FakeSlurm, text: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """The script as it runs; it and what it started are killed where a test fails meanwhile."""
    variables = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "1"}
    variables |= {"SLURM_JOB_NODELIST": "n1", **more}
    path = slurm.directory / "job.sh"
    path.write_text(text)
    process = subprocess.Popen(
        ["bash", str(path)],
        env=slurm.variables(**variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        with process:
            pass  # closes its pipes


def ended(slurm: FakeSlurm, text: str, **more: str) -> tuple[int, str]:
    with begun(slurm, text, **more) as process:
        said, _ = process.communicate(timeout=30)
    return process.returncode, said


def requeued(slurm: FakeSlurm) -> list[str]:
    return [call for call in slurm.calls("scontrol") if call.startswith("requeue")]


@pytest.mark.parametrize(
    ("body", "code", "again"),
    [
        ("touch DONE; exit 0", 0, False),
        ("touch DONE; exit 137", 0, False),  # the launcher's own end does not count
        ("exit 0", 0, True),
        ("exit 75", 0, True),
        ("exit 138", 0, True),
        ("exit 10", 0, True),  # as MPICH's mpirun says it
        (f"echo '{STOPPED}' >summary.json; exit 143", 0, True),
        ("exit 1", 1, False),
        ("exit 2", 2, False),
        ("exit 137", 137, False),
        ('echo \'{"status": "finished"}\' >summary.json; exit 1', 1, False),
        ("mkdir -p job; touch job/stop; exit 75", 75, False),
        ("touch ../slurm/queue; : >../slurm/queue; exit 75", 75, False),  # being cancelled
    ],
)
def test_done_decides_and_not_the_launcher(
    body: str, code: int, again: bool, slurm: FakeSlurm, tmp_path: Path
) -> None:
    found, said = ended(slurm, script(tmp_path, body))
    assert found == code, said
    assert requeued(slurm) == (["requeue 7"] if again else [])


@pytest.mark.parametrize(
    ("preempted", "again"),
    [("2026-01-02T00:00:09", True), ("2026-01-01T23:00:00", False), ("None", False)],
)
def test_a_preemption_in_this_life_is_no_failure(
    preempted: str, again: bool, slurm: FakeSlurm, tmp_path: Path
) -> None:
    slurm.answer("show", f"   StartTime=2026-01-02T00:00:00\n   A=1 PreemptTime={preempted}\n")
    ended(slurm, script(tmp_path, "exit 143"))
    assert requeued(slurm) == (["requeue 7"] if again else [])


def test_restarts_are_counted(slurm: FakeSlurm, tmp_path: Path) -> None:
    text = script(tmp_path, "exit 75", "job.max_restarts=3")
    assert ended(slurm, text, SLURM_RESTART_COUNT="2")[0] == 0
    assert len(requeued(slurm)) == 1
    code, said = ended(slurm, text, SLURM_RESTART_COUNT="3")
    assert (code, len(requeued(slurm))) == (76, 1)
    assert "not finished after 3 restarts" in said


def test_the_task_of_an_array_is_requeued_alone(slurm: FakeSlurm, tmp_path: Path) -> None:
    text = script(tmp_path, "exit 75")
    ended(slurm, text, SLURM_ARRAY_JOB_ID="7", SLURM_ARRAY_TASK_ID="3")
    assert requeued(slurm) == ["requeue 7_3"]


def test_what_was_stopped_or_finished_does_not_begin(slurm: FakeSlurm, tmp_path: Path) -> None:
    text = script(tmp_path, "exit 1")
    (tmp_path / "run" / "job").mkdir(parents=True)
    (tmp_path / "run" / "job" / "stop").touch()
    assert ended(slurm, text)[0] == 75
    (tmp_path / "run" / "DONE").touch()
    assert ended(slurm, text)[0] == 0
    assert not (tmp_path / "launched").exists()


WAITS = """stop() { trap '' USR1; /bin/sleep 0.3; exit 75; }
trap stop USR1
touch began
while true; do /bin/sleep 0.05; done"""


@pytest.mark.parametrize(
    ("number", "code", "again"), [(signal.SIGUSR1, 0, True), (signal.SIGTERM, 143, False)]
)
def test_requests_are_handed_on_and_only_one_revives(
    number: int, code: int, again: bool, slurm: FakeSlurm, tmp_path: Path
) -> None:
    with begun(slurm, script(tmp_path, WAITS)) as process:
        deadline = time.monotonic() + 20
        while not (tmp_path / "run" / "began").exists():
            assert time.monotonic() < deadline
            time.sleep(0.02)
        for _ in range(3):  # wait returns at each
            os.kill(process.pid, number)
            time.sleep(0.02)
        said, _ = process.communicate(timeout=30)
    assert process.returncode == code, said
    assert requeued(slurm) == (["requeue 7"] if again else [])
    assert "the launcher ended with 75" in said


@pytest.mark.parametrize(
    ("more", "ranks"),
    [
        ({}, "2"),
        ({"SLURM_NTASKS_PER_NODE": "4", "SLURM_JOB_NUM_NODES": "3"}, "12"),
        ({"SLURM_NTASKS": "8", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "8"}, "16"),
    ],
)
def test_the_ranks_are_those_that_the_job_got(
    more: dict[str, str], ranks: str, slurm: FakeSlurm, tmp_path: Path
) -> None:
    ended(slurm, script(tmp_path, "touch DONE"), **more)
    launched = (tmp_path / "launched").read_text().split()
    assert launched[:2] == ["-n", ranks]
    assert launched[-2:] == ["--expect-ranks", ranks]
    assert "--resume" in launched


@pytest.mark.parametrize(
    ("library", "chosen"),
    [("MPICH Version: 5.0", "pmi2"), ("Open MPI v5.0.1", "pmix"), ("Intel(R) MPI", "pmi2")],
)
def test_the_plugin_of_srun_follows_the_library(
    library: str, chosen: str, slurm: FakeSlurm, tmp_path: Path
) -> None:
    python = tmp_path / "python"
    python.write_text(
        f"#!/bin/bash\n[ $1 = -c ] && echo '{library}' || touch {tmp_path}/run/DONE\n"
    )
    python.chmod(0o700)
    code, said = ended(slurm, script(tmp_path, "", "job.launcher=srun", f"job.python={python}"))
    assert code == 0, said
    assert slurm.calls("srun")[-1].startswith(f"--mpi={chosen} --ntasks=2 ")


def test_a_library_that_no_plugin_serves_is_refused(slurm: FakeSlurm, tmp_path: Path) -> None:
    python = tmp_path / "python"
    python.write_text("#!/bin/bash\necho 'CRAY MPICH version 8'\n")
    python.chmod(0o700)
    (slurm.directory / "bin" / "srun").write_text("#!/bin/bash\necho none openmpi\n")
    code, said = ended(slurm, script(tmp_path, "", "job.launcher=srun", f"job.python={python}"))
    assert code == 2
    assert "needs srun --mpi=cray_shasta, which this SLURM does not have" in said


@pytest.mark.parametrize("taken", [False, True])
def test_an_environment_is_unpacked_only_in_a_directory_of_one_s_own(
    taken: bool, slurm: FakeSlurm, tmp_path: Path
) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text("#!/bin/bash\n")
    python.chmod(0o700)
    archive, scratch, other = tmp_path / "env.tar", tmp_path / "scratch", tmp_path / "other"
    subprocess.run(["tar", "-C", tmp_path, "-cf", archive, "bin"], check=True, timeout=30)
    scratch.mkdir()
    other.mkdir()
    if taken:
        (scratch / f"mpifed-7-{os.getuid()}").symlink_to(other)
    text = script(tmp_path, "touch DONE", f"job.stage={archive}", f"job.scratch={scratch}")
    code, said = ended(slurm, text)
    assert code == (2 if taken else 0), said
    assert ("or belongs to somebody else" in said) == taken
    assert not list(other.iterdir())
    assert (tmp_path / "launched").exists() != taken
