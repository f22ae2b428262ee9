"""What a job does when its launcher ends, for whatever reason: the script itself, under bash."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, fake_slurm
from rendering import rendered


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    return fake_slurm(tmp_path / "slurm")


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
    return rendered(*mine, "--output", tmp_path / "run")


@contextmanager
def begun(slurm: FakeSlurm, text: str, **more: str) -> Iterator[subprocess.Popen[str]]:
    """The script as it runs; it and what it started are killed where a test fails meanwhile."""
    variables = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "SLURM_JOB_NUM_NODES": "1"}
    variables |= {"SLURM_JOB_NODELIST": "n1", **more}
    path = slurm.directory / "job.sh"
    path.write_text(text)
    slurm.answer("queue", "RUNNING\n")
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
        ("exit 0", 75, True),
        ("exit 75", 75, True),
        ("exit 138", 138, False),
        ("exit 1", 1, False),
        ("exit 2", 2, False),
        ("exit 137", 137, False),
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


@pytest.mark.parametrize(("restarts", "code"), [(1, 75), (2, 76)])
def test_restarts_have_a_limit(restarts: int, code: int, slurm: FakeSlurm, tmp_path: Path) -> None:
    text = script(tmp_path, "exit 75", "job.max_restarts=2")
    found, said = ended(slurm, text, SLURM_RESTART_COUNT=str(restarts))
    assert found == code, said
    assert bool(requeued(slurm)) == (code == 75)
    assert ("2 restarts" in said) == (code == 76)


@pytest.mark.parametrize(("signalled", "code"), [(True, 75), (False, 255)])
def test_a_launcher_that_was_asked_before_it_could_listen_is_queued_again(
    signalled: bool, code: int, slurm: FakeSlurm, tmp_path: Path
) -> None:
    ask = "kill -USR1 $PPID; /bin/sleep 0.2; " if signalled else ""
    assert ended(slurm, script(tmp_path, f"trap '' USR1; {ask}exit 255"))[0] == code
    assert bool(requeued(slurm)) == signalled


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["ls /no/such"], r"prologue.*\b2: ls /no/such"),
        (["module load -- none"], r"prologue.*\b127: module load -- none"),
        (["for i in 1 2; do", "ls /no/such", "done"], r"prologue.*\b2: ls"),
    ],
)
def test_a_prologue_that_fails_ends_the_job_with_what_it_said(
    lines: list[str], said: str, slurm: FakeSlurm, tmp_path: Path
) -> None:
    after = tmp_path / "after"
    words = [f"job.prologue={[*lines, f'touch {after}']}"]
    code, printed = ended(slurm, script(tmp_path, "touch DONE", *words))
    assert code == 2, printed
    assert re.search(said, (tmp_path / "run" / "job" / "events.txt").read_text())
    assert not (tmp_path / "launched").exists()
    assert not after.exists()
    assert requeued(slurm) == []


@pytest.mark.parametrize(("number", "code", "again"), [("USR1", 75, True), ("TERM", 143, False)])
def test_a_request_during_the_prologue_is_kept(
    number: str, code: int, again: bool, slurm: FakeSlurm, tmp_path: Path
) -> None:
    text = script(tmp_path, "touch DONE", f"job.prologue=['kill -{number} $$', /bin/sleep 1]")
    assert ended(slurm, text)[0] == code
    assert bool(requeued(slurm)) == again
    assert not (tmp_path / "launched").exists()


@pytest.mark.parametrize("launcher_name", ["mpirun", "srun"])
def test_only_srun_is_told_how_many_processors_a_task_has(
    launcher_name: str, slurm: FakeSlurm, tmp_path: Path
) -> None:
    """An mpirun starts its daemons by srun, which would bind each to those of one task."""
    tell = f'env >"{tmp_path}/seen"; touch "{tmp_path}/run/DONE"'
    python = tmp_path / "python"
    python.write_text(f"#!/bin/bash\n{tell}\n")
    python.chmod(0o700)
    words = [f"job.launcher={launcher_name}", "job.mpi=pmi2", f"job.python={python}"]
    text = script(tmp_path, tell, "job.cpus_per_task=3", *words)
    more = {"SLURM_CPUS_PER_TASK": "3", "SLURM_TRES_PER_TASK": "cpu:3"}
    assert ended(slurm, text, **more)[0] == 0
    seen = dict(line.split("=", 1) for line in (tmp_path / "seen").read_text().splitlines())
    of_srun = {name for name in seen if name.endswith(("CPUS_PER_TASK", "TRES_PER_TASK"))}
    assert seen["OMP_NUM_THREADS"] == "3"
    if launcher_name == "mpirun":
        assert of_srun == set()
    else:
        assert seen["SRUN_CPUS_PER_TASK"] == "3"
        assert "--cpus-per-task=3" in slurm.calls("srun")[-1]


def test_variables_of_the_environment_keep_their_values(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Also those that a name of the script's own might be taken for."""
    names = ["SCRATCH", "PYTHON", "MPI", "IMAGE", "STAGE", "JOB", "CODE", "WORDS"]
    text = script(
        tmp_path,
        f'env >"{tmp_path}/seen"; touch DONE',
        *(f"job.environment.{name}=mine" for name in names),
    )
    assert ended(slurm, text)[0] == 0
    assert {f"{name}=mine" for name in names} <= set((tmp_path / "seen").read_text().splitlines())


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
    ("number", "code", "again"), [(signal.SIGUSR1, 75, True), (signal.SIGTERM, 143, False)]
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
    assert re.search(r"launcher.*\b75\b", said)


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


@pytest.mark.parametrize(
    ("answer", "code", "refused"),
    [
        (': >"$FAKE/queue"; kill $PPID; exit 143', 75, False),
        (': >"$FAKE/queue"; exit 1', 75, False),
        # It has not answered scontrol, and queues the job again while the script waits.
        ("touch late; exit 1", 75, False),
        ("exit 1", 75, True),
    ],
)
def test_slurm_that_ends_the_script_has_queued_the_job(
    answer: str, code: int, refused: bool, slurm: FakeSlurm, tmp_path: Path
) -> None:
    """It ends the script and scontrol in it at once, or answers late what it has done."""
    program = slurm.directory / "bin" / "scontrol"
    program.write_text(f"#!/bin/bash\ncd $FAKE; case $1 in requeue) {answer} ;; esac\n")
    program.with_name("sleep").write_text("#!/bin/bash\ncd $FAKE; [ ! -e late ] || : >queue\n")
    found, said = ended(slurm, script(tmp_path, "exit 75"))
    assert (found, bool(re.search(r"SLURM .*queue", said))) == (code, refused)


def test_a_slurm_that_does_not_answer_at_first_is_asked_again(
    slurm: FakeSlurm, tmp_path: Path
) -> None:
    for name in ("squeue", "scontrol"):
        program = slurm.directory / "bin" / name
        begin, body = program.read_text().split("\n", 1)
        silent = f'n=$(cat "$FAKE/{name}.n" 2>/dev/null); echo $((n + 1)) >"$FAKE/{name}.n"'
        program.write_text(f"{begin}\n{silent}\n[ $((n)) -ge 2 ] || exit 1\n{body}")
    assert ended(slurm, script(tmp_path, "exit 75"))[0] == 75
    assert requeued(slurm) == ["requeue 7"]
