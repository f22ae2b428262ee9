"""PBS, Flux and LSF: scripts as their manuals want them, and what their commands were seen to say.

No scheduler runs here. Answers are those of the manuals of OpenPBS 23, Flux 0.88 and LSF 10.1; the
goldens hold what a script has beside the files of ``jobs``: ``GOLDEN=write`` writes them anew.
"""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest
from fake_slurm import FakeSlurm, fake_slurm
from test_jobs_command import TINY, UNCHECKED, call
from test_jobs_script import begun, ended, launcher

from mpifed.errors import InputError
from mpifed.jobs import render
from mpifed.jobs.plan import FILES, plan

HERE = Path(__file__).parent
COMMON = ["clients=4", "rounds=6", "job.python=/opt/venv/bin/python", "job.account=abc"]
NODES = ["job.nodes=2", "job.ranks_per_node=4", "job.cpus_per_task=2", "job.gpus_per_node=4"]
MORE = {"slurm": ["job.mem=100G"], "pbs": ["job.mem=100G"], "flux": [], "lsf": []}
SITES = ("lumi", "leonardo", "juwels-booster", "aurora", "frontier")
OTHERS = ("pbs", "flux", "lsf")

SAID = {
    "pbs": ("qsub", "1234.pbs01", "1235.pbs01"),
    "flux": ("flux", "ƒM7Zq9AKHno", "fM7Zq9AKHnp"),
    "lsf": ("bsub", "Job <1234> is submitted to queue <normal>.", "Job <1235> is submitted."),
}
NAMES = {"pbs": ("1234", "1235"), "flux": ("fM7Zq9AKHno", "fM7Zq9AKHnp"), "lsf": ("1234", "1235")}
QUEUED = {
    "pbs": "Job Id: {}.pbs01\n    Job_Name = mpifed\n    job_state = {}\n    queue = workq\n"
    "    Variable_List = PBS_O_HOME=/home/me,\n\tPBS_O_LANG=C\n    comment = Not Running: busy\n",
    "flux": "{}|{}|busy\n",
    "lsf": "{}|{}\n",
}
STATES = {
    "pbs": ("Q", "R", "F"),
    "flux": ("SCHED", "RUN", "FAILED"),
    "lsf": ("PEND", "RUN", "EXIT"),
}
ASKED = {"pbs": "qstat", "flux": "flux", "lsf": "bjobs"}
CANCELLED = {"pbs": "qdel", "flux": "flux cancel", "lsf": "bkill"}
FLUX = """case $1 in
--parent | batch) cat >"$FAKE/script"; cat "$FAKE/said" ;;
jobs) cat "$FAKE/queue" 2>/dev/null ;;
cancel) echo "$*" >>"$FAKE/cancelled" ;;
getattr) echo "$2" ;;
esac"""


@pytest.fixture(params=OTHERS)
def fake(request, tmp_path: Path, monkeypatch) -> tuple[str, FakeSlurm]:
    """A scheduler of programs that note how they were called."""
    found = fake_slurm(tmp_path / "fake")
    submits, said, _ = SAID[request.param]
    bodies = {"flux": FLUX}
    if request.param != "flux":
        bodies = {
            submits: 'cat >"$FAKE/script"; cat "$FAKE/said"',
            ASKED[request.param]: 'cat "$FAKE/queue" 2>/dev/null',
            CANCELLED[request.param]: f'echo "{CANCELLED[request.param]} $*" >>"$FAKE/cancelled"',
        }
    for name, body in bodies.items():
        program = found.directory / "bin" / name
        program.write_text(f"#!/bin/bash\n{body}\nexit 0\n")
        program.chmod(0o700)
    found.answer("said", f"{said}\n")
    for name, value in found.variables().items():
        monkeypatch.setenv(name, value)
    return request.param, found


def own_lines(text: str) -> list[str]:
    files = (FILES / name for name in ("job.sh", "slurm.sh", "successor.sh", "srun.sh"))
    known = {line for file in files for line in file.read_text().splitlines()}
    return [line for line in text.splitlines() if line and line not in known]


@pytest.mark.parametrize("name", MORE)
def test_scripts_are_those_of_the_manuals(name: str, monkeypatch, tmp_path: Path) -> None:
    monkeypatch.chdir("/")
    words = [*COMMON, *NODES, *MORE[name], f"job.scheduler={name}", "job.partition=main"]
    job = plan(words, None, Path("/runs/x"), False)
    ((_, text),) = render.scripts(job, [0])
    found = "\n".join(own_lines(text)) + "\n"
    golden = HERE / "golden" / f"{name}.sh"
    if os.environ.get("GOLDEN") == "write":
        golden.write_text(found)
    assert found == golden.read_text()
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=20)


@pytest.mark.parametrize("site", SITES)
def test_sites_render(site: str, tmp_path: Path) -> None:
    assert "not run there" in (FILES / "sites" / f"{site}.yaml").read_text()
    nodes = ["job.nodes=2", *([] if site == "aurora" else ["job.ranks_per_node=8"])]
    job = plan([*nodes, "clients=4"], site, tmp_path / "run", False)
    ((_, text),) = render.scripts(job, [0])
    assert ("#PBS -l filesystems=home:flare" in text) == (site == "aurora")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=20)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["job.nodes=1-2", "job.ranks_per_node=2"], "takes a whole number"),
        (["job.ranks=2", "job.qos=x"], "job.qos is not for"),
        (["job.ranks=2", "job.mem=1G"], "job.nodes is missing"),
        (["job.nodes=1", "job.ranks=2", "job.gpus_per_node=a100:4"], "takes a number"),
        (["job.ranks=2", "job.account=a;b"], "job.account is 'a;b', which"),
        (["job.ranks=2", "job.warn_seconds=3600"], "less than job.time, 3600 s"),
    ],
)
@pytest.mark.parametrize("name", OTHERS)
def test_what_a_scheduler_has_not_is_refused(name: str, words, part: str, tmp_path: Path) -> None:
    job = plan([*words, f"job.scheduler={name}"], None, tmp_path / "run", False)
    with pytest.raises(InputError, match=part):
        render.scripts(job, [0])


def test_a_job_is_followed_stopped_and_resumed(fake, tmp_path: Path, capfd) -> None:
    name, found = fake
    output, scheduler = tmp_path / "run", f"job.scheduler={name}"
    said = call(capfd, "submit", UNCHECKED, *TINY, scheduler, "--output", output)
    job, later = NAMES[name]
    assert f"job {job}: 1 run" in said
    assert (found.directory / "script").read_text() == (output / "job" / "job.sh").read_text()
    waits, runs, over = STATES[name]
    found.answer("queue", QUEUED[name].format(job, waits))
    assert f"job {job}, pending" in call(capfd, "status", output)
    assert f"has a job in the queue, {job};" in call(capfd, "resume", UNCHECKED, output, code=2)
    call(capfd, "stop", output)
    assert (found.directory / "cancelled").read_text().endswith(f" {job}\n")
    found.answer("queue", QUEUED[name].format(job, over))
    call(capfd, "resume", UNCHECKED, output)
    assert not (output / "job" / "stop").exists()

    # The job has submitted another, which goes on.
    (output / "job" / "again.txt").write_text(f"{SAID[name][2]}\n")
    found.answer("queue", QUEUED[name].format(later, runs))
    assert f"job {later}, running" in call(capfd, "status", output)
    (found.directory / "cancelled").unlink()
    call(capfd, "stop", output)
    assert not (found.directory / "cancelled").exists()  # the script sees the file itself
    assert "stopping (running)" in call(capfd, "status", output)
    call(capfd, "cancel", output)
    assert (found.directory / "cancelled").read_text() == f"{CANCELLED[name].split()[-1]} {later}\n"


def test_each_run_of_a_sweep_is_a_job(fake, tmp_path: Path, capfd) -> None:
    name, _ = fake
    output = tmp_path / "sweep"
    words = [*TINY, "seed=[0,1]", f"job.scheduler={name}", "--output", output]
    assert call(capfd, "submit", UNCHECKED, *words).count("1 run,") == 2
    for seed in (0, 1):
        text = (output / f"seed={seed}" / "job" / "job.sh").read_text()
        assert (
            f"words=('synthetic-fedem' 'clients=4' 'rounds=6' 'data.n_test=20' 'seed={seed}')"
            in text
        )


def script(name: str, tmp_path: Path, body: str, *words: str) -> str:
    mine = ["job.ranks=2", f"job.mpirun={launcher(tmp_path, body)}", "job.launcher=mpirun", *words]
    job = plan([*mine, f"job.scheduler={name}"], None, tmp_path / "run", False)
    return render.scripts(job, [0])[0][1]


VARIABLES = {"PBS_JOBID": "1234.pbs01", "PBS_NODEFILE": "/dev/null", "LSB_JOBID": "1234"}
VARIABLES |= {"LSB_MCPU_HOSTS": "n1 2"}


def test_a_job_that_is_not_finished_submits_the_next(fake, tmp_path: Path) -> None:
    name, found = fake
    text = script(name, tmp_path, "exit 75", "job.max_restarts=1")
    (tmp_path / "run" / "job").mkdir(parents=True)
    (tmp_path / "run" / "job" / "job.sh").write_text(text)
    assert ended(found, text, **VARIABLES)[0] == 0
    assert (found.directory / "script").read_text() == text
    assert (tmp_path / "run" / "job" / "again.txt").read_text() == f"{SAID[name][1]}\n"
    (found.directory / "script").unlink()
    assert ended(found, text, **VARIABLES)[0] == 76
    assert not (found.directory / "script").exists()
    assert "the launcher ended with 75" in (tmp_path / "run" / "job" / "output.txt").read_text()


WAITS = "trap 'exit 75' USR1; touch began; while true; do /bin/sleep 0.05; done"


@pytest.mark.parametrize("why", ["limit", "stop"])
def test_the_script_itself_sees_the_limit_and_the_stop_file(fake, why: str, tmp_path: Path) -> None:
    name, found = fake
    (found.directory / "bin" / "sleep").unlink()
    words = ["job.time=0:12", "job.warn_seconds=7"] if why == "limit" else []
    with begun(found, script(name, tmp_path, WAITS, *words), **VARIABLES) as process:
        if why == "stop":
            until(lambda: (tmp_path / "run" / "began").exists(), 20)
            (tmp_path / "run" / "job" / "stop").touch()
        events = tmp_path / "run" / "job" / "events.txt"
        until(lambda: events.exists() and "the launcher ended with 75" in events.read_text(), 25)
        if why == "stop":
            assert process.wait(20) == 75
    assert "received USR1" in events.read_text()
    assert ("stopped, as requested" in events.read_text()) == (why == "stop")


def until(condition, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
