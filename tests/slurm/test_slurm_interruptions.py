"""Real jobs that are stopped, cancelled, pre-empted, or lose a node, and what becomes of them."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from pathlib import Path

import pytest
import yaml
from local_slurm import (
    PAUSE,
    WORDS,
    LocalSlurm,
    events,
    newest_job,
    ranks,
    reached,
    rows,
    summary,
    told,
    until,
)

pytestmark = pytest.mark.slurm

TEMPLATES = Path(__file__).parents[2] / "jobs"
LAUNCHERS = ("mpirun", "srun")


@pytest.fixture(scope="module", autouse=True)
def limited(slurm: LocalSlurm, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Two runs that take longer than their limit: one is warned of it, the other is not.

    They wait most of the time, so others run beside them. A minute is the shortest limit, and SLURM
    looks every half minute whether to warn.
    """
    folder = tmp_path_factory.mktemp("limited")
    outputs = {name: folder / name for name in ("warned", "unwarned")}
    limit = ["job.ranks=2", "job.time=1", 'job.extra_directives=["--nodelist=n4"]']
    slurm.submit(outputs["warned"], *limit, "job.warn_seconds=25", pause=2.5)
    options = '["--nodelist=n4", "--signal=B:CONT@1"]'
    unwarned = [
        "job.ranks=2",
        "job.time=1",
        "job.warn_seconds=30",
        f"job.extra_directives={options}",
    ]
    slurm.submit(outputs["unwarned"], *unwarned, "checkpoint.every=5", pause=4.0)
    return outputs


def same(output: Path, whole: Path) -> None:
    """The run in ``output`` is finished, and bit for bit that of ``whole``."""
    assert (output / "DONE").exists(), told(output)
    assert rows(output) == rows(whole)
    assert summary(output)["state_digest"] == summary(whole)["state_digest"]


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_signal_stops_requeues_and_resumes(
    launcher: str, slurm: LocalSlurm, whole: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    layout = ["job.nodes=2", "job.ranks_per_node=2", f"job.launcher={launcher}"]
    job = slurm.submit(output, *layout)
    reached(output, 10)
    slurm.call("scancel", "--signal=USR1", "--batch", job)
    assert slurm.wait(job, "COMPLETED")["Restarts"] == "1"
    same(output, whole)
    assert re.search("resumed.*round-0000", told(output))
    assert "restart 1: 4 ranks on n[1-2]" in events(output)
    assert summary(output)["ranks"] == 4


def test_the_template_submitted_by_hand_goes_on_after_a_signal(
    slurm: LocalSlurm, whole: Path, tmp_path: Path
) -> None:
    output, programs = tmp_path / "run", f"{Path(sys.executable).parent}:{slurm.variables['PATH']}"
    more = {"PATH": programs, "RUN_DIR": str(output), "PAUSE": str(PAUSE)}
    site = yaml.safe_load((TEMPLATES / "sites" / "local-test.yaml").read_text())
    user = LocalSlurm(slurm.variables | site["environment"] | more)
    options = ["--parsable", "--ntasks=2", f"--output={tmp_path}/out", "--partition=main"]
    job = user.call("sbatch", *options, TEMPLATES / "slurm.sbatch", *WORDS, "rounds=40").strip()
    reached(output, 10)
    slurm.call("scancel", "--signal=USR1", "--batch", job)
    assert slurm.wait(job, "COMPLETED")["Restarts"] == "1"
    same(output, whole)
    assert summary(output)["ranks"] == 2


def test_stop_stays_stopped_and_resume_goes_on_with_other_ranks(
    slurm: LocalSlurm, whole: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    job = slurm.submit(output, "job.ranks=4")
    reached(output, 5)
    assert "running" in slurm.jobs("status", output)
    assert "queue" in slurm.jobs("resume", output, code=2)
    slurm.jobs("stop", output)
    known = slurm.wait(job, "FAILED", "COMPLETED", "CANCELLED")
    assert (known["ExitCode"], known["Restarts"]) == ("75:0", "0")
    assert not (output / "DONE").exists()
    told_of = slurm.jobs("status", output)
    assert re.search(rf"job {job}, stopped, round \d+ .*checkpoint", told_of)
    slurm.jobs("resume", output, "job.ranks=2", "job.launcher=srun", "job.environment.PAUSE=0")
    assert newest_job(output) != job
    slurm.wait(newest_job(output), "COMPLETED")
    same(output, whole)
    assert summary(output)["ranks"] == 2
    assert "finished, round 40 of 40" in slurm.jobs("status", output)
    assert "rounds=N" in slurm.jobs("resume", output, code=2)


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_cancelled_job_is_not_revived(launcher: str, slurm: LocalSlurm, tmp_path: Path) -> None:
    output = tmp_path / "run"
    job = slurm.submit(output, "job.ranks=2", f"job.launcher={launcher}", rounds=1000)
    reached(output, 5)
    slurm.call("scancel", job)
    assert slurm.wait(job, "CANCELLED")["Restarts"] == "0"
    until(lambda: "TERM" in events(output), 30, lambda: told(output))
    until(lambda: not any(line.startswith(job) for line in slurm.queue()), 30)
    assert slurm.show(job)["JobState"] == "CANCELLED"
    assert not (output / "DONE").exists()


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_killed_rank_ends_the_job(launcher: str, slurm: LocalSlurm, tmp_path: Path) -> None:
    """Eight ranks on two nodes; prints how long the step lived on."""
    output = tmp_path / "run"
    layout = ["job.nodes=2", "job.ranks_per_node=4", f"job.launcher={launcher}"]
    job = slurm.submit(output, *layout, rounds=1000)
    reached(output, 15)  # by when supervisors of the nodes know each other
    there = ranks(output)
    assert len(there) == 8
    began = time.monotonic()
    os.kill(there[5], signal.SIGKILL)
    until(lambda: "launcher" in events(output), 60, lambda: told(output))
    print(f"{launcher}: {time.monotonic() - began:.1f} s from SIGKILL of a rank to the step's end")
    until(lambda: not ranks(output), 60)
    assert slurm.wait(job, "FAILED", "COMPLETED", seconds=60)["JobState"] == "FAILED"
    assert slurm.show(job)["Restarts"] == "0"
    said = [line for line in told(output).splitlines() if "mpifed: " in line]
    if "--mpi=pmix" in events(output) and not said:
        return  # another rank's Open MPI 5 was faster: SLURM kills all that are left as it aborts
    (line,) = said
    named = r"mpifed: rank 5 on n2 \(client 5\): round \d.*SIGKILL.*[\d,]+ MB"
    assert re.search(named, line), line


def test_a_time_limit_is_only_a_pause(
    limited: dict[str, Path], slurm: LocalSlurm, whole: Path
) -> None:
    output = limited["warned"]
    assert int(slurm.wait(newest_job(output), "COMPLETED", seconds=200)["Restarts"]) >= 1
    same(output, whole)
    assert "USR1" in events(output)


def test_a_limit_without_a_warning_ends_the_job_and_resume_goes_on(
    limited: dict[str, Path], slurm: LocalSlurm, whole: Path
) -> None:
    output = limited["unwarned"]
    known = slurm.wait(newest_job(output), "TIMEOUT", "COMPLETED", "FAILED", seconds=200)
    assert (known["JobState"], known["Restarts"]) == ("TIMEOUT", "0"), told(output)
    assert "TERM" in events(output)
    assert "USR1" not in events(output)
    assert not (output / "DONE").exists()
    slurm.jobs("resume", output, "job.time=10", "job.environment.PAUSE=0")
    slurm.wait(newest_job(output), "COMPLETED")
    same(output, whole)
    assert re.search("resumed.*round-0000", told(output))


def test_a_lost_node_costs_a_restart_on_those_that_are_left(
    slurm: LocalSlurm, whole: Path, tmp_path: Path
) -> None:
    output = tmp_path / "run"
    layout = ["job.nodes=1-2", "job.ranks_per_node=2", 'job.extra_directives=["--exclude=n3,n4"]']
    job = slurm.submit(output, *layout, "checkpoint.every=5")
    reached(output, 10)
    assert slurm.show(job)["NumNodes"] == "2"
    # drained as well, or it would be back before the job is
    for state in ("drain", "down"):
        slurm.call("scontrol", "update", "nodename=n2", f"state={state}", "reason=test")
    try:
        assert int(slurm.wait(job, "COMPLETED")["Restarts"]) == 1
    finally:
        slurm.call("scontrol", "update", "nodename=n2", "state=resume")
    same(output, whole)
    assert "4 ranks on n[1-2]" in events(output)
    assert "2 ranks on n1" in events(output)
    assert summary(output)["ranks"] == 2


ON_N1 = 'job.extra_directives=["--nodelist=n1"]'


def take_n1(cluster: LocalSlurm) -> None:
    """A more urgent job, which takes the node for some seconds from whoever has it."""
    words = ["--partition=urgent", "--nodelist=n1", "--exclusive", "--output=/dev/null"]
    cluster.call("sbatch", *words, "--wrap", "sleep 3")


def test_preemption_with_the_users_signal(slurm: LocalSlurm, whole: Path, tmp_path: Path) -> None:
    output = tmp_path / "run"
    job = slurm.submit(output, "job.ranks=2", ON_N1)
    reached(output, 10)
    take_n1(slurm)
    # SLURM 24.11 queues it once more, although it has finished.
    assert slurm.wait(job, "COMPLETED")["Restarts"] in ("1", "2")
    same(output, whole)
    assert "USR1" in events(output)
    assert "restart 1:" in events(output)
