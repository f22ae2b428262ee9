"""``python -m mpifed.jobs`` as it is typed, on a SLURM that only notes how it was called."""

from __future__ import annotations

import contextlib
import io
import json
import re
import stat
from pathlib import Path

import pytest
import yaml
from fake_slurm import FakeSlurm, fake_slurm

from mpifed.testing import run_command

TINY = ["clients=4", "rounds=6", "data.n_test=20", "job.ranks=2"]
UNCHECKED = "--unchecked"
"""Where looking for data, a process of its own, is not what a test is about."""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    found = fake_slurm(tmp_path / "slurm")
    for name, value in found.variables().items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MPIFED_SITE", raising=False)
    return found


def call(capfd: pytest.CaptureFixture[str], *words: object, code: int = 0) -> str:
    capfd.readouterr()
    found = run_command(["jobs", *words])
    out, err = capfd.readouterr()
    assert found == code, out + err
    if code:
        assert not out or words[0] == "check"
        assert err.startswith("mpifed.jobs: ")
        assert err.count("\n") == 1
    return out + err


def finish(output: Path, rounds: int = 6) -> None:
    """What a run of ``TINY`` leaves that came to its end."""
    words = ["synthetic-fedem", "clients=4", f"rounds={rounds}", "data.n_test=20"]
    plan = io.StringIO()
    with contextlib.redirect_stdout(plan):
        assert run_command(["run", *words, "--dry-run", "--json"]) == 0
    configuration = json.loads(plan.getvalue())["configuration"]
    (output / "config.yaml").write_text(yaml.safe_dump(configuration, sort_keys=False))
    summary = {"status": "finished", "rounds": rounds, "seconds": {"total": 1.0}}
    (output / "summary.json").write_text(json.dumps(summary))
    (output / "DONE").touch()


def finished(capfd: pytest.CaptureFixture[str], output: Path) -> dict[Path, bytes]:
    """The files of a job that was submitted and came to its end."""
    call(capfd, "submit", UNCHECKED, *TINY, "--output", output)
    finish(output)
    return files_in(output)


def files_in(output: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in output.rglob("*") if path.is_file()}


def test_rendering_needs_no_slurm(tmp_path: Path, monkeypatch, capfd) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    out = call(capfd, "render", *TINY, "--output", tmp_path / "run")
    assert out.startswith("#!/bin/bash\n")
    message = call(capfd, "submit", UNCHECKED, *TINY, "--output", tmp_path / "run", code=2)
    assert "sbatch" in message and "PATH" in message
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["render", "clients=4"], r"job\.ranks\b"),
        (["render", *TINY, "partition=main"], r"partition.*job\.partition"),
        (["rendr"], "'rendr'.*'render'"),
        (["status", "/nowhere"], r"'/nowhere'.*job\.json"),
        (["resume", "/nowhere", "--smoke"], "--smoke.*resume"),
        (["submit", *TINY, "--json"], "--json.*submit.*--output"),
    ],
)
def test_bad_words_are_one_sentence(words: list[str], part: str, slurm, capfd) -> None:
    assert re.search(part, call(capfd, *words, code=2))
    assert slurm.calls("sbatch") == []


def test_a_dry_run_writes_and_submits_nothing(slurm: FakeSlurm, tmp_path: Path, capfd) -> None:
    output = tmp_path / "run"
    out = call(capfd, "submit", UNCHECKED, *TINY, "seed=[0,1]", "--output", output, "--dry-run")
    assert "#SBATCH --array=0,1" in out
    assert "--dependency=afterany:" in out
    assert not output.exists()
    assert slurm.calls("sbatch") == []
    for word in ("job.python=/no/python", "data=/no/file.h5"):
        missing = ["submit", "clients=4", "job.ranks=2", word, "--output", output, "--dry-run"]
        assert "/no/" in call(capfd, *missing, code=2)
        assert "#SBATCH" in call(capfd, *missing, "--unchecked")


def test_a_job_is_recorded_privately_and_known_again(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch, capfd
) -> None:
    output = tmp_path / "run"
    monkeypatch.setenv("SLURM_JOB_ID", "99")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    monkeypatch.setenv("SBATCH_PARTITION", "wrong")
    monkeypatch.setenv("PMI_RANK", "3")
    assert "job 7: 1 run" in call(capfd, "submit", UNCHECKED, *TINY, "--output", output)
    assert [words.split()[0] for words in slurm.calls("sbatch")] == ["--test-only", "--parsable"]
    script = (slurm.directory / "script").read_text()
    assert script == (output / "job" / "job.sh").read_text()
    variables = (slurm.directory / "environment").read_text()
    assert "SLURM_CONF=/etc/slurm.conf" in variables
    for foreign in ("SLURM_JOB_ID", "SBATCH_PARTITION", "PMI_RANK"):
        assert foreign not in variables
    for path in (output, *output.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path
    again = call(capfd, "submit", UNCHECKED, *TINY, "--output", output, code=2)
    assert f"--output {output} " in again and "resume" in again

    slurm.answer("queue", "7|N/A|PENDING|Resources\n")
    assert "job 7, pending (Resources)" in call(capfd, "status", output)
    assert re.search(r"queue.*\b7\b", call(capfd, "resume", UNCHECKED, output, code=2))
    slurm.answer("queue", "7|N/A|RUNNING|None\n6|N/A|FAILED|None\n")
    (output / "job" / "events.txt").write_text("2026-01-02T03:04:05 job 7 restart 2: 2 ranks\n")
    assert "job 7, running\n  2026-01-02T03:04:05 job 7 restart 2: 2 ranks\n" in call(
        capfd, "status", output
    )

    call(capfd, "stop", output)
    assert slurm.calls("scancel") == [
        "--state=PENDING 7",
        "--signal=USR1 --batch --state=RUNNING 7",
    ]
    assert "stopping (running)" in call(capfd, "status", output)
    slurm.answer("queue", "")
    assert "job 7, stopped" in call(capfd, "status", output)
    assert re.search(f"{output} .*queue.*stop", call(capfd, "stop", output, code=2))

    monkeypatch.setenv("FAKE_JOB", "8")
    call(capfd, "resume", UNCHECKED, output, "job.ranks=4", "rounds=9")
    assert not (output / "job" / "stop").exists()
    known = json.loads((output / "job" / "job.json").read_text())
    assert [entry["job"] for entry in known["history"]] == [7, 8]
    assert "#SBATCH --ntasks=4\n" in (slurm.directory / "script").read_text()
    assert "rounds=9" in (slurm.directory / "script").read_text()
    finish(output, 9)
    assert "rounds=N" in call(capfd, "resume", UNCHECKED, output, code=2)
    call(capfd, "resume", UNCHECKED, output, "rounds=12")
    assert not (output / "DONE").exists()
    assert re.search(f"{output} .*queue.*cancel", call(capfd, "cancel", output, code=2))
    slurm.answer("queue", "8|N/A|RUNNING|None\n")
    call(capfd, "cancel", output)
    assert slurm.calls("scancel")[-1] == "8"
    assert (output / "job" / "stop").exists()


def test_a_sweep_is_followed_as_a_whole_and_in_parts(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch, capfd
) -> None:
    output = tmp_path / "sweep"
    call(capfd, "submit", UNCHECKED, *TINY, "seed=[0,1,2]", "--output", output)
    assert slurm.calls("sbatch")[-1] == "--parsable --dependency=afterany:7"
    done = output / "seed=1"
    (done / "metrics.csv").write_text("round,test_accuracy\n0,0.5\n6,0.75\n")
    finish(done)
    slurm.answer("queue", "7|0|RUNNING|None\n7|2|PENDING|JobArrayTaskLimit\n")
    rows = json.loads(call(capfd, "status", output, "--json"))
    states = ["running", "finished", "pending (JobArrayTaskLimit)"]
    assert [row["state"] for row in rows] == states
    assert rows[1]["progress"]["test_accuracy"] == 0.75
    call(capfd, "stop", output / "seed=0")
    assert slurm.calls("scancel")[-1].endswith(" 7_0")
    assert (output / "seed=0" / "job" / "stop").exists()
    call(capfd, "cancel", output)
    assert slurm.calls("scancel")[-1] == "7_0 7_2"
    slurm.answer("queue", "")
    monkeypatch.setenv("FAKE_JOB", "11")
    call(capfd, "resume", UNCHECKED, output)
    assert "#SBATCH --array=0,2\n" in (output / "job" / "job.sh").read_text()
    assert not (output / "seed=0" / "job" / "stop").exists()


def test_runs_of_a_sweep_that_were_resumed_alone_leave_the_others_to_their_job(
    slurm: FakeSlurm, tmp_path: Path, monkeypatch, capfd
) -> None:
    output = tmp_path / "sweep"
    call(capfd, "submit", UNCHECKED, *TINY, "seed=[0,1,2]", "--output", output)
    slurm.answer("queue", "7|0|RUNNING|None\n7|1|FAILED|None\n7|2|RUNNING|None\n")
    monkeypatch.setenv("FAKE_JOB", "11")
    assert "job 11: 1 run, report" in call(
        capfd, "resume", UNCHECKED, output / "seed=1", "job.mem=1G"
    )
    slurm.answer("queue", "7|0|RUNNING|None\n7|2|RUNNING|None\n11|1|PENDING|None\n")
    rows = json.loads(call(capfd, "status", output, "--json"))
    assert [(row["job"], row["state"]) for row in rows] == [
        ("7_0", "running"),
        ("11_1", "pending"),
        ("7_2", "running"),
    ]
    assert re.search(r"queue.*\b7_0\b", call(capfd, "resume", UNCHECKED, output, code=2))
    call(capfd, "stop", output / "seed=2")
    assert slurm.calls("scancel")[-1].endswith(" 7_2")
    call(capfd, "stop", output)
    assert slurm.calls("scancel")[-1].endswith(" 7_0 11_1 7_2")
    slurm.answer("queue", "11|N/A|PENDING|Dependency\n")  # the report alone
    call(capfd, "cancel", output)
    assert slurm.calls("scancel")[-1] == "11"
    slurm.answer("queue", "")
    assert re.search(f"{output} .*queue.*cancel", call(capfd, "cancel", output, code=2))


@pytest.mark.parametrize("only", ["true", "[ $1 = --parsable ]"])
def test_a_refused_resume_leaves_a_finished_run_as_it_is(
    only: str, slurm: FakeSlurm, tmp_path: Path, capfd
) -> None:
    """Whether SLURM refuses the job when it is asked, or in the end."""
    output = tmp_path / "run"
    finished(capfd, output)
    (output / "job" / "stop").touch()
    before = files_in(output)
    program = slurm.directory / "bin" / "sbatch"
    program.write_text(f"#!/bin/bash\n{only} || exit 0\necho 'sbatch: error: too many' >&2; exit 1")
    told = call(capfd, "resume", UNCHECKED, output, "rounds=9", code=2)
    assert "too many" in told
    assert files_in(output) == before


@pytest.mark.parametrize("words", [["algorithm=fedavg", "rounds=9"], ["seed=7", "rounds=9"]])
def test_a_finished_run_does_not_go_on_as_another(
    words: list[str], slurm: FakeSlurm, tmp_path: Path, capfd
) -> None:
    output = tmp_path / "run"
    before = finished(capfd, output)
    other = call(capfd, "resume", UNCHECKED, output, *words, code=2)
    assert words[0].split("=")[0] in other
    assert "rounds=N" in call(capfd, "resume", UNCHECKED, output, "rounds=3", code=2)
    assert files_in(output) == before
    call(capfd, "resume", UNCHECKED, output, "rounds=9")
    assert not (output / "DONE").exists()


def test_ranks_that_are_given_anew_go_before_the_layout_of_before(
    slurm: FakeSlurm, tmp_path: Path, capfd
) -> None:
    output = tmp_path / "run"
    words = ["clients=6", *TINY[1:-1], "job.nodes=2", "job.ranks_per_node=2", "--output", output]
    call(capfd, "submit", UNCHECKED, *words)
    for more, nodes in (([], None), (["job.nodes=3"], 3)):
        words = ["resume", output, "job.ranks=6", *more, "--dry-run", "--unchecked"]
        script = call(capfd, *words)
        assert "#SBATCH --ntasks=6\n" in script
        assert (f"#SBATCH --nodes={nodes}\n" in script) == bool(more) == ("--nodes=" in script)


def test_without_an_answer_of_slurm_the_runs_still_tell_how_far_they_are(
    slurm: FakeSlurm, tmp_path: Path, capfd
) -> None:
    output = tmp_path / "run"
    call(capfd, "submit", UNCHECKED, *TINY, "--output", output)
    (output / "metrics.csv").write_text("round,test_accuracy\n0,0.5\n4,0.75\n")
    program = slurm.directory / "bin" / "squeue"
    program.write_text("#!/bin/bash\necho 'squeue: error: no controller' >&2\nexit 1\n")
    said = call(capfd, "status", output)
    assert re.search(r"job 7, .*round 4 .*0\.7500", said)
    assert re.search("^mpifed.jobs: .*: no controller$", said, re.MULTILINE)
    assert "no controller" in call(capfd, "stop", output, code=1)
    for said in (
        "allocation failure: Unable to contact slurm controller (connect failure)",
        "Could not establish a configuration source",
    ):
        (slurm.directory / "bin" / "sbatch").write_text(f"#!/bin/bash\necho '{said}' >&2; exit 1\n")
        told = call(capfd, "check", *TINY, "--output", tmp_path / "other", code=1)
        last = told.splitlines()[-1]
        assert last.startswith("mpifed.jobs: ") and last.endswith(f": {said}")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"version": 9}', '{"version": 1}', '{"version": 1, "runs": 3}']
)
def test_damaged_records_are_named(text: str, tmp_path: Path, slurm, capfd) -> None:
    (tmp_path / "job").mkdir()
    (tmp_path / "job" / "job.json").write_text(text)
    assert str(tmp_path / "job" / "job.json") in call(capfd, "status", tmp_path, code=2)


def test_a_directory_that_was_moved_is_known_by_its_place(slurm, tmp_path: Path, capfd) -> None:
    call(capfd, "submit", UNCHECKED, *TINY, "--output", tmp_path / "old")
    (tmp_path / "old").rename(tmp_path / "new")
    assert call(capfd, "status", tmp_path / "new").startswith(f"{tmp_path / 'new'}: job 7")


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["job.python=/no/python"], "job.python.*'/no/python'"),
        (["job.mpirun=/no/mpirun"], "job.mpirun.*'/no/mpirun'"),
        (["job.image=/no/image"], "job.image.*'/no/image'"),
    ],
)
def test_nothing_is_submitted_that_cannot_run(
    words: list[str], part: str, slurm: FakeSlurm, tmp_path: Path, capfd
) -> None:
    output = tmp_path / "run"
    for action in ("check", "submit"):
        refused = call(capfd, action, *TINY, *words, "--output", output, code=2)
        assert re.search(part, refused)
    assert slurm.calls("sbatch") == []
    assert not output.exists()
    call(capfd, "submit", UNCHECKED, *TINY, *words, "--output", output)
    assert (output / "job" / "job.json").exists()


def test_a_program_that_a_module_brings_is_left_to_the_job(
    slurm, tmp_path: Path, capfd, monkeypatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".bash_profile").write_text('module() { [ "$*" = "is-avail python" ]; }\n')
    words = [*TINY, "--output", tmp_path / "run", "job.python=python9"]
    assert "'python9'" in call(capfd, "check", *words, code=2)
    out = call(capfd, "check", *words, "job.modules=[python]")
    assert re.search(r"job\.python\b.*modules.*python9", out)
    assert "'pyton'" in call(capfd, "check", *words, "job.modules=[python, pyton]", code=2)


@pytest.mark.parametrize("action", ["render", "check", "submit"])
def test_a_job_of_more_ranks_than_clients_is_refused(
    action: str, slurm, tmp_path: Path, capfd
) -> None:
    words = [*TINY, "job.ranks=5", "--output", tmp_path / "run"]
    assert re.search(r"job\.ranks is 5.* clients, 4", call(capfd, action, *words, code=2))


def test_status_shows_the_last_event_and_where_the_output_is(
    slurm: FakeSlurm, tmp_path: Path, capfd
) -> None:
    output = tmp_path / "run"
    call(capfd, "submit", UNCHECKED, *TINY, "--output", output)
    assert "slurm-7.out" not in call(capfd, "status", output)
    (output / "job" / "slurm-7.out").touch()
    (output / "job" / "events.txt").write_text("2 ranks on n1\nthe launcher ended with 1\nfailed\n")
    slurm.answer("queue", "7|N/A|FAILED|NonZeroExitCode\n")
    out = call(capfd, "status", output)
    assert "job 7, failed" in out
    assert "  failed\n" in out
    assert f" {output}/job/slurm-7.out\n" in out


def test_numbers_of_jobs_are_numbers(slurm: FakeSlurm, tmp_path: Path, capfd) -> None:
    output = tmp_path / "run"
    call(capfd, "submit", UNCHECKED, *TINY, "--output", output)
    place = output / "job" / "job.json"
    place.write_text(place.read_text().replace('"job": 7', '"job": "--user=root"'))
    assert "damaged" in call(capfd, "cancel", output, code=2)
    assert slurm.calls("scancel") == []
