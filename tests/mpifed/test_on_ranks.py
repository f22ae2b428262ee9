"""Runs that a Python program starts on several ranks."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import user_components
from commands import OPEN_MPI, call, environment, summary_of

import mpifed
from mpifed import command
from mpifed import launch as launching
from mpifed.errors import InputError, RunError
from mpifed.training import train

TINY = {"clients": 4, "rounds": 2, "data.n_test": 20}


def test_what_ranks_cannot_have_is_refused_before_they_start(tmp_path: Path, monkeypatch) -> None:
    place = tmp_path / "run"
    for ranks in (0, -1, 1025, 2.0, True, "2"):
        with pytest.raises(InputError, match=rf"ranks.* {ranks!r}.*whole number.* 1 to 1024"):
            mpifed.run(**TINY, output=place, ranks=ranks)
    with pytest.raises(InputError, match=r"'arrays'.*numpy\.savez.*data='file\.npz'"):
        arrays = mpifed.arrays(np.zeros((8, 3)), np.zeros(8, int))
        mpifed.run("digits-fedem", data=arrays, clients=2, output=place, ranks=2)
    with pytest.raises(InputError, match=r"evaluation\.central is 'passed:.*of this process"):
        held = {"evaluation.central": (np.zeros((8, 8, 8)), np.zeros(8, int))}
        mpifed.run("digits-fedem", **held, clients=2, output=place, ranks=2)
    with pytest.raises(InputError, match=r"'__main__:build'.*model='file:name'"):
        mpifed.run("digits-fedem", model="__main__:build", output=place, ranks=2)
    with pytest.raises(InputError, match=r"'roundz'.*'rounds'"):
        mpifed.run(roundz=3, output=place, ranks=2)
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    with pytest.raises(InputError, match=r"ranks .*\b2\b.*itself a rank"):
        mpifed.run(**TINY, output=place, ranks=2)
    assert not place.exists()


@pytest.mark.slow
def test_it_is_the_run_of_one_rank(tmp_path: Path, capfd, monkeypatch) -> None:
    for name, value in OPEN_MPI.items():
        monkeypatch.setenv(name, value)
    alone = mpifed.run(**TINY, output=tmp_path / "one")
    several = mpifed.run(**TINY, output=tmp_path / "two", ranks=2)
    assert several.status == "finished" and several.summary["ranks"] == 2
    assert several.summary["state_digest"] == alone.summary["state_digest"]
    assert capfd.readouterr().out == ""
    with pytest.raises(InputError, match=r"--output .*two.*--resume.*--restart"):
        mpifed.run(**TINY, output=tmp_path / "two", ranks=2)
    longer = {**TINY, "rounds": 3}
    again = mpifed.run(**longer, output=tmp_path / "two", ranks=2, resume=True, quiet=False)
    assert again.summary["rounds"] == 3 and "round 3/3" in capfd.readouterr().out


@pytest.mark.slow
def test_a_failure_on_a_rank_is_raised(tmp_path: Path, monkeypatch) -> None:
    for name, value in (OPEN_MPI | {"FAIL": "mistake:1:2"}).items():
        monkeypatch.setenv(name, value)
    pattern = r"^rank 1 .*algorithm '.*:Fails'.* round 2.*ValueError: the user's mistake"
    with pytest.raises(RunError, match=pattern):
        mpifed.run(**TINY, algorithm=user_components.Fails, output=tmp_path / "x", ranks=2)


WORDS = ["synthetic-fedem", *(f"{key}={value}" for key, value in TINY.items())]


def test_the_command_starts_a_launcher_where_it_is_asked_to(tmp_path, monkeypatch, capfd) -> None:
    begun = []
    monkeypatch.setattr(launching, "become", lambda command: begun.append(command) or 0)
    monkeypatch.setattr(command, "physical_cores", lambda: 8)
    for words, ranks in (
        (["--ranks", "2"], 2),
        (["--ranks=auto"], 4),  # of four clients
        (["clients=20", "--ranks", "auto"], 8),
    ):
        assert call([*WORDS, *words], capfd).code == 0
        _, *rest = begun.pop()
        assert rest[:2] == ["-n", str(ranks)]
        assert rest[-2:] == ["--expect-ranks", str(ranks)]
        assert "auto" not in rest and not any("--ranks" in word[:7] for word in rest)
    refused = call([*WORDS, "rounds=[1", "--ranks", "2"], capfd)
    assert refused.code == 2 and "rounds" in refused.err and not begun
    monkeypatch.setattr(command, "physical_cores", lambda: 1)
    alone = call([*WORDS, "--ranks", "auto", "--output", str(tmp_path / "alone")], capfd)
    assert alone.code == 0 and summary_of(tmp_path / "alone")["ranks"] == 1 and not begun
    assert mpifed.run(**TINY, output=tmp_path / "python", ranks="auto").summary["ranks"] == 1


def test_a_rank_starts_no_launcher(monkeypatch) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    for words, said in (("auto", None), ("2", "--ranks .*2.*itself a rank")):
        known = launching.read_words([*WORDS, "--ranks", words])
        if said is None:
            assert launching._ranks_to_start(known) is None
        else:
            with pytest.raises(InputError, match=said):
                launching._ranks_to_start(known)


# As in the shell that `srun --pty bash` opens.
ONLY_TASK = {
    **{"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_ID": "0", "SLURM_JOB_ID": "7"},
    **{"SLURM_NODELIST": "n1", "SLURM_JOB_NODELIST": "n1", "SLURM_NNODES": "1"},
    **{"SLURM_TASKS_PER_NODE": "1", "PMI_RANK": "0", "PMI_SIZE": "1"},
}


def test_the_only_task_of_a_step_of_slurm_starts_a_launcher_as_a_shell_does(monkeypatch, capfd):
    for name, value in ONLY_TASK.items():
        monkeypatch.setenv(name, value)
    begun = []

    def become(*words):
        begun.append(words)
        raise SystemExit(0)

    monkeypatch.setattr(os, "execve", become)
    for words in (["--ranks", "2"], ["--ranks=3"]):
        call([*WORDS, *words], capfd)
    assert [words[1][1:3] for words in begun] == [["-n", "2"], ["-n", "3"]]
    assert not any(name.startswith(("SLURM", "PMI")) for *_, names in begun for name in names)
    for name in ONLY_TASK.keys() - {"SLURM_PROCID", "SLURM_JOB_ID"}:
        monkeypatch.delenv(name)
    call([*WORDS, "--ranks", "2"], capfd)
    assert begun.pop()[2]["SLURM_JOB_ID"] == "7"  # a batch script, which has all of the job
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    known = launching.read_words([*WORDS, "--ranks", "2"])
    with pytest.raises(InputError, match=r"--ranks .*2.*itself a rank"):
        launching._ranks_to_start(known)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["run", *WORDS, "--output", "0"], ["sweep", *WORDS, "seed=[0]", "--output", "."]]
)
def test_a_step_of_one_task_runs_on_ranks_of_its_own(words, tmp_path):
    done = subprocess.run(
        [*command.python_words(words[0]), *words[1:], "--ranks", "2"],
        **{"cwd": tmp_path, "env": environment(**ONLY_TASK), "timeout": 120},
        **{"capture_output": True, "text": True},
    )
    assert done.returncode == 0, done.stderr
    (summary,) = tmp_path.glob("*/summary.json")
    assert json.loads(summary.read_text())["ranks"] == 2


MINE = """
from mpifed.algorithms.fedavg.fedavg import FedAvg

class Mine(FedAvg):
    pass
"""


@pytest.fixture
def directory(tmp_path, monkeypatch):
    """A working directory with files named as modules of Python, and a component."""
    monkeypatch.chdir(tmp_path)
    for name in ("random", "copy", "queue", "types", "functools"):
        Path(f"{name}.py").write_text("raise SystemExit('not Python's own')")
    Path("mine.py").write_text(MINE)


def test_files_of_the_working_directory_stand_in_for_no_module_of_python(directory):
    words = [*command.python_words("run"), "--list", "mine:Mine"]
    done = subprocess.run(words, env=environment(), capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert "mine:Mine" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("words", [["run", "--ranks", "2"], ["sweep"], ["sweep", "--ranks", "2"]])
def test_nor_do_they_in_what_is_started(words, directory):
    words = [*command.python_words(words[0]), *words[1:], *WORDS, "algorithm=mine:Mine"]
    done = subprocess.run(
        [*words, "seed=0", "--output", "x"],
        **{"env": environment(), "capture_output": True, "text": True, "timeout": 120},
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("cores", "said"), [(1, False), (2, True), (16, True)])
def test_a_run_of_one_process_says_how_many_cores_lie_idle(cores, said, tmp_path, monkeypatch):
    monkeypatch.setattr(train, "physical_cores", lambda: cores)
    mpifed.run(**TINY, output=tmp_path / "run")
    mpifed.run(**{**TINY, "clients": 1}, output=tmp_path / "one")
    logs = [(tmp_path / name / "log.txt").read_text().splitlines() for name in ("run", "one")]
    assert ("--ranks auto" in logs[0][1]) == said
    assert not any("idle" in line for line in logs[1])
