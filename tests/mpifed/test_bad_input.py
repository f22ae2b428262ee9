"""Wrong commands and files: exit code 2, one sentence, and nothing written."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import re
import stat
import subprocess
from pathlib import Path

import commands
import pytest
from commands import TINY, call, checked_refusal, in_child, launch, mounted, rows

import mpifed
from mpifed.errors import InputError
from mpifed.testing import run_command


@pytest.fixture(autouse=True)
def users_modules(monkeypatch):
    monkeypatch.syspath_prepend(commands.HERE)


def refused(outcome, pattern, target: Path) -> None:
    """One sentence, exit code 2 and nothing written."""
    checked_refusal(outcome, pattern)
    assert not target.exists()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["nowhere.yaml"], r"'nowhere\.yaml'"),
        (["synthetic-fedm"], "'synthetic-fedm'.*'synthetic-fedem'"),
        (["=3"], "'=3'.*experiment.*key=value"),
        (["digits-fedem", "algorithm=fedem,fedavg"], r"'\[fedem,fedavg\]'"),
        (["digits-fedem", "local={lr:0.3}"], r"local\.lr=0\.3"),
        (["digits-fedem", f"local.epochs={2**63 - 1}"], f"local.epochs is {2**63 - 1}.*{10**13}"),
        (["--resume"], "--resume.*--output DIR"),
    ],
)
def test_experiments_that_are_not_there(words, expected, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.yaml").mkdir()
    refused(call(words, capfd), expected, tmp_path / "runs")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rounds", "=", "2"], "'rounds = 2'.*spaces.*rounds=2"),
        (["rounds", "=2"], "'rounds =2'.*spaces.*rounds=2"),
        (["rounds=", "2"], "'rounds= 2'.*spaces.*rounds=2"),
        (["label=outcome"], r"'label'; did you mean data\.label\?"),
        (["alpha=0.3"], r"'alpha'; did you mean data\.dirichlet_alpha\?"),
        (["data.alpha=0.3"], r"'data\.alpha'; did you mean 'dirichlet_alpha'\?"),
        (["roundz=2"], "did you mean 'rounds'"),
        (["evaluation.central=0.2"], "evaluation.central is 0.2; it must be holdout, .* a file"),
    ],
)
def test_what_a_newcomer_guesses_is_answered_by_what_is_meant(words, expected, tmp_path, capfd):
    outcome = call(["digits-fedem", *words, "--output", tmp_path / "run"], capfd)
    refused(outcome, expected, tmp_path / "run")


def test_patience_without_validation_is_answered_by_how_to_validate(tmp_path, capfd):
    words = [*TINY, "evaluation.patience=3", "--output", tmp_path / "run"]
    outcome = call(words, capfd)
    refused(outcome, r"evaluation\.validation_fraction=0\.2", tmp_path / "run")
    assert "did you mean" not in outcome.err


def test_an_option_of_run_is_answered_by_its_command(capfd):
    assert run_command(["--list"]) == 2
    assert "mpifed run --list'?" in capfd.readouterr().err


def test_the_label_of_a_file_needs_no_section(tmp_path, capfd):
    lines = [f"{k % 7},{'yn'[k % 2]}" for k in range(60)]
    (tmp_path / "own.csv").write_text("\n".join(["age,outcome", *lines]))
    words = [f"data={tmp_path / 'own.csv'}", "label=outcome", "--dry-run"]
    assert call(words, capfd).code == 0


@pytest.mark.parametrize("word", ["job.ranks=2", "job={ranks: 2}", "sweep={seed: [0, 1]}"])
def test_words_of_jobs_are_sent_to_where_they_belong(word, tmp_path, capfd):
    refused(call([*TINY, word], capfd), "mpifed jobs.*mpifed (jobs submit|sweep)", tmp_path / "run")


WRITTEN = """clients: 4
data:
  name: digits
algorithm: fedprox
local: {epochs: 2,
  lr: 0.1}
"""


@pytest.mark.parametrize(
    ("change", "line", "expected"),
    [
        (("clients", "client"), 1, "'client'.*'clients'"),
        (("name: digits", "name: digits\n  alpha: 1"), 4, r"'data\.alpha'"),
        (("fedprox", "fedpro"), 4, "'fedpro'.*'fedprox'"),
        (("0.1", "high"), 6, r"local\.lr is 'high'.*number"),
    ],
)
def test_a_mistake_in_a_file_is_named_with_its_line(
    change, line, expected, tmp_path, capfd, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(WRITTEN.replace(*change))
    expected = rf"mine\.yaml, line {line}: .*{expected}"
    refused(call(["mine.yaml"], capfd), expected, tmp_path / "runs")
    swept = call(["mine.yaml"], capfd, "sweep")
    assert swept.code == 2 and re.search(expected, swept.err)
    with pytest.raises(InputError, match=expected):
        mpifed.run("mine.yaml")


def test_a_mistake_on_the_command_line_names_no_file(tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text(WRITTEN)
    for word in ("lr=high", "local.lr=high", "local={lr: high}", "algorithm=fedpro"):
        outcome = call(["mine.yaml", word], capfd)
        assert outcome.code == 2 and "mine.yaml" not in outcome.err, outcome


@pytest.mark.parametrize(
    ("word", "meant"),
    [
        ("lr=0.1", "local.lr or server_optimizer.lr"),
        ("learning_rate=0.1", "local.lr"),
        ("local.learning_rate=0.1", "local.lr"),
        ("output=runs/mine", "--output DIR"),
        ("num_rounds=3", "rounds"),
    ],
)
def test_words_of_other_tools_are_answered_by_the_full_key(word, meant, tmp_path, capfd):
    refused(
        call([*TINY, word], capfd),
        rf"key '{word.partition('=')[0]}'.* {meant}\W*$",
        tmp_path / "run",
    )


def test_a_section_may_be_left_out_where_one_in_use_has_the_key(capfd):
    short = {"epochs": 2, "batch_size": 32, "optimizer": "adam", "topology": "ring", "mu": 0.5}
    full = {"local.epochs": 2, "local.batch_size": 32, "local.optimizer": "adam"}
    full |= {"exchange": "gossip", "exchange.topology": "ring", "algorithm.mu": 0.5}
    short["algorithm"] = full["algorithm"] = "fedprox"
    stored = []
    for words in (short, full):
        line = [f"{key}={value}" for key, value in words.items()]
        outcome = call([TINY[0], *line, "clients=4", "--dry-run", "--json"], capfd)
        stored.append(json.loads(outcome.out)["configuration"])
    assert stored[0] == stored[1] and stored[0]["exchange"]["topology"]["name"] == "ring"


def test_a_folder_of_checkpoints_that_are_foreign_holds_no_run(tmp_path, capfd):
    foreign = tmp_path / "run" / "checkpoints" / "model.pt"
    foreign.parent.mkdir(parents=True)
    foreign.write_bytes(b"PK")
    for words in ([], ["--resume"], ["--restart"]):
        outcome = call([*TINY, "--output", tmp_path / "run", *words], capfd)
        assert (outcome.code, len(outcome.messages)) == (2, 1), outcome
        assert re.search("--output.*'checkpoints'", outcome.messages[0])
    assert [*tmp_path.rglob("*.*")] == [foreign] and foreign.read_bytes() == b"PK"


@pytest.mark.parametrize(
    "word",
    [
        "data=~no-such-user/x.csv",
        "data=~no-such-user/x.npz",
        "data={name: csv, path: ~no-such-user}",
        "data={name: image_folder, path: ~no-such-user}",
        "data={name: parquet, raw: ~no-such-user}",
        "data={name: labelled_texts, path: ~no-such-user}",
        "data={name: cifar10, raw: ~no-such-user}",
        "data=~no-such-user/x.h5",
        "evaluation.central=~no-such-user.csv",
        "evaluation.central=~no-such-user.h5",
        "model={name: cnn, weights: ~no-such-user/x.pt}",
        "participation={name: trace, path: ~no-such-user.csv}",
        "topology=~no-such-user.edges",
    ],
)
def test_the_home_of_nobody_is_no_file(word, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    outcome = call(["digits-fedem", "clients=2", word, "--output", "run"], capfd)
    refused(outcome, "~no-such-user", tmp_path / "run")


def test_a_file_may_be_called_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = [f"{number},{number % 2}" for number in range(40)]
    (tmp_path / "~x.csv").write_text("\n".join(["a,label", *lines]) + "\n")
    assert run_command(["run", "data=~x.csv", "clients=2", "rounds=1", "--output", "run"]) == 0
    assert mpifed.load("run").predict("~x.csv").shape == (40,)


@pytest.mark.parametrize(
    "words",
    [
        ["data=patients.xlsx"],
        ["data.path=Patients.XLS", "data.name=csv"],
        ["data=own.csv", "evaluation.central=patients.ods"],
        ["data.path=patients.xlsx", "data.name=labelled_texts", "clients=2"],
    ],
)
def test_a_spreadsheet_is_answered_by_what_is_read(words, tmp_path, capfd, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "own.csv").write_text("a,label\n" + "1,0\n2,1\n" * 50)
    for name in ("patients.xlsx", "Patients.XLS", "patients.ods"):
        (tmp_path / name).write_bytes(b"PK\x03\x04")
    outcome = call([*words, "--output", "run"], capfd)
    refused(outcome, r"spreadsheet.*CSV.*mpifed\.frame\(pandas\.read_excel", tmp_path / "run")


def test_data_files_that_do_not_fit(tmp_path, capfd):
    file, target = tmp_path / "digits.h5", tmp_path / "run"
    assert run_command(["data", "digits", "--output", file, "--clients", 5]) == 0
    words = ["digits-fedem", "rounds=1", "--output", target]
    wrong = [*words, "clients=7", f"data={file}"]
    refused(call(wrong, capfd), "clients.* 7.*data.path.*digits.h5.* 5", target)
    refused(call([*words, "data=none.h5"], capfd), "data.path.*'none.h5'", target)
    (tmp_path / "text.h5").write_text("hello")
    refused(call([*words, f"data={tmp_path / 'text.h5'}"], capfd), "text.h5.*signature", target)
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 3])
    refused(call(wrong, capfd), "digits.h5.*truncated", target)


@pytest.mark.parametrize(
    "variable",
    [
        "PMI_SIZE",
        "SLURM_STEP_NUM_TASKS",
    ],
)
def test_a_launcher_that_does_not_match_the_library(variable, tmp_path, capfd, monkeypatch):
    monkeypatch.setenv(variable, "4")
    target = tmp_path / "run"
    words = [*TINY, "--output", target]
    refused(call(words, capfd), f"{variable}.* 4 tasks", target)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "3")
    silent = call(words, capfd)
    assert (silent.code, silent.err) == (2, "")
    monkeypatch.setenv(variable, "1")
    assert call([*words, "--dry-run"], capfd).code == 0


def test_a_traceback_is_shown_to_who_asks_for_it(tmp_path, capfd, monkeypatch):
    monkeypatch.setenv("MPIFED_DEBUG", "1")
    outcome = call([*TINY, "rounds=-1", "--output", tmp_path / "run"], capfd)
    assert outcome.code == 2
    assert "Traceback" in outcome.err
    assert "check_value" in outcome.err
    assert len(outcome.messages) == 1


# Where the run is to be written.


def test_an_output_that_is_or_holds_something_else(tmp_path, capfd):
    file = tmp_path / "file"
    file.write_text("precious")
    outcome = call([*TINY, "--output", file], capfd)
    assert (outcome.code, file.read_text()) == (2, "precious")
    assert re.search(f"--output {file} .*file.*directory", outcome.messages[0])
    outcome = call([*TINY, "--output", file / "below"], capfd)
    assert (outcome.code, len(outcome.messages)) == (2, 1)
    outcome = call([*TINY, "--output", tmp_path / ("long" * 100)], capfd)
    assert outcome.code == 2
    assert os.strerror(errno.ENAMETOOLONG) in outcome.messages[0]
    for name, target in (("itself", "itself"), ("dangling", "nowhere")):
        (tmp_path / name).symlink_to(target)
        for output in (tmp_path / name, tmp_path / name / "below"):
            outcome = call([*TINY, "--output", output], capfd)
            assert (outcome.code, len(outcome.messages)) == (2, 1), outcome
    assert not (tmp_path / "nowhere").exists()


def test_an_output_that_holds_a_run(tmp_path, capfd):
    target = tmp_path / "run"
    assert call([*TINY, "--quiet", "--output", target], capfd).code == 0
    before = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
    for more, expected in (
        ([], "--resume.*--restart"),
        (["--dry-run"], "--resume.*--restart"),
        (["--resume", "local.lr=0.2"], "local.lr.* 0.1.* 0.2"),
        (["--resume", "rounds=3"], "rounds.* 3.*round-000004.h5.* 4"),
        (["--resume", "seed=1", "clients=5"], "clients.* 4.* 5.*seed.* 0.* 1"),
        (["--resume", "exchange=gossip"], "exchange.name.*'server'.*'gossip'"),
        (["--resume", "evaluation.unseen_fraction=0.3"], "evaluation.unseen_fraction.* 0.0.* 0.3"),
        (
            ["--resume", "evaluation.validation_fraction=0.3"],
            "evaluation.validation_fraction.* 0.0.* 0.3",
        ),
        (["--resume", "algorithm=fedavg"], "algorithm.name.*'fedem'.*'fedavg'"),
    ):
        outcome = call([*TINY, *more, "--output", target], capfd)
        assert (outcome.code, len(outcome.messages)) == (2, 1), outcome
        assert re.search(expected, outcome.err)
    assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == before
    elsewhere = tmp_path / "another"
    assert call([*TINY, "--quiet", "rounds=1", "--output", elsewhere], capfd).code == 0
    words = ["--resume", target / "checkpoints" / "round-000004.h5", "--output", elsewhere]
    outcome = call([*TINY, "rounds=6", *words], capfd)
    assert outcome.code == 2
    assert re.search("--output.*another .*run/checkpoints/round-000004.h5", outcome.messages[0])
    assert len(rows(elsewhere)) == 2


def test_checkpoints_may_be_a_link_to_another_disk(tmp_path, capfd):
    target, disk = tmp_path / "run", tmp_path / "disk"
    assert call([*TINY, "--quiet", "--output", target], capfd).code == 0
    (target / "checkpoints").rename(disk)
    (target / "checkpoints").symlink_to(disk)
    outcome = call([*TINY, "--quiet", "rounds=6", "--resume", "--output", target], capfd)
    assert (outcome.code, outcome.messages) == (0, [])
    assert (disk / "round-000006.h5").exists()


def test_an_output_in_which_another_process_runs(tmp_path, capfd, monkeypatch):
    monkeypatch.setattr("mpifed.training.run_directory.PATIENCE", 0.1)
    target = tmp_path / "run"
    assert call([*TINY, "--quiet", "--output", target], capfd).code == 0
    before = (target / "metrics.csv").read_bytes()
    with (target / "log.txt").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        outcome = call([*TINY, "rounds=6", "--resume", "--output", target], capfd)
    assert (outcome.code, len(outcome.messages)) == (2, 1)
    assert re.search(f"--output {target} .*process", outcome.err)
    assert (target / "metrics.csv").read_bytes() == before
    assert (target / "DONE").exists()
    # Once that one is gone, or has failed in this very process, the way is free.
    with pytest.raises(InputError, match=r"run.*process"), (target / "log.txt").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        mpifed.run(output=target, resume=True, rounds=6)
    assert mpifed.run(output=target, resume=True, rounds=6).status == "finished"
    assert mpifed.run(output=target, resume=True, rounds=8).status == "finished"


def test_a_directory_with_files_of_a_run_that_is_none(tmp_path, capfd):
    (tmp_path / "metrics.csv").write_text("precious")
    outcome = call([*TINY, "--resume", "--output", tmp_path], capfd)
    assert outcome.code == 2
    assert re.search(f"--output {tmp_path} .*config.yaml", outcome.messages[0])
    (tmp_path / "config.yaml").write_text("[")
    outcome = call([*TINY, "--resume", "--output", tmp_path], capfd)
    assert outcome.code == 2
    assert re.search("config.yaml, line 2.* YAML", outcome.messages[0])
    assert (tmp_path / "metrics.csv").read_text() == "precious"


def test_checkpoints_that_cannot_be_gone_on_from(tmp_path, capfd):
    source, target = tmp_path / "source", tmp_path / "target"
    assert call([*TINY, "rounds=2", "--quiet", "--output", source], capfd).code == 0
    (path,) = (source / "checkpoints").iterdir()
    whole = path.read_bytes()
    wrong = tmp_path / "wrong.h5"
    middle = len(whole) // 2
    flipped = whole[:middle] + bytes([whole[middle] ^ 4]) + whole[middle + 1 :]
    future = whole.replace(b"mpifed checkpoint 1\n", b"mpifed checkpoint 9\n", 1)
    for content, expected in (
        (whole[:-1], "wrong.h5.*seal"),
        (whole + b"\0", "wrong.h5.*seal"),
        (flipped, "wrong.h5.*seal"),
        (future, "wrong.h5.*format 9.* 1"),
        (b"mpifed", "wrong.h5.*mpifed checkpoint"),
        (whole[512:], "wrong.h5.*mpifed checkpoint"),
    ):
        wrong.write_bytes(content)
        words = [*TINY, "--resume", wrong, "--output", target]
        refused(call(words, capfd), expected, target)
    (tmp_path / "empty").mkdir()
    words = ["--resume", tmp_path / "empty", "--output", target]
    refused(call(words, capfd), "--resume.*empty.*checkpoint", target)
    words = ["--resume", path.parent, "--output", target]
    refused(call(words, capfd), "--resume.*source/checkpoints.*checkpoint", target)
    words = [*TINY, "data.dimension=21", "--resume", path, "--output", target]
    refused(call(words, capfd), "round-000002.h5.*data.dimension.* 20.* 21", target)


def test_a_read_only_output_directory(tmp_path, capfd):
    place = tmp_path / "readonly"
    if os.geteuid():
        place.mkdir(mode=stat.S_IRUSR | stat.S_IXUSR)
        make = contextlib.nullcontext()
    else:
        make = mounted(place, "-t", "tmpfs", "-o", "ro", "tmpfs")
    with make:
        for target in (place, place / "run"):
            outcome = call([*TINY, "--output", target], capfd)
            assert (outcome.code, len(outcome.messages)) == (2, 1), outcome
            assert re.search(f"--output {target} .*{os.strerror(errno.EROFS)}", outcome.err)
        assert list(place.iterdir()) == []


@pytest.mark.parametrize(
    ("size", "left"),
    [
        (8, 0),
        (64, 2),
    ],
)
def test_a_disk_that_gets_full(size, left, tmp_path, capfd):
    place = tmp_path / "small"
    words = [*TINY, "rounds=8", "checkpoint.keep=9", "--quiet", "--output", place / "run"]
    with mounted(place, "-t", "tmpfs", "-o", f"size={size}k", "tmpfs"):
        capfd.readouterr()
        code = in_child(lambda: run_command(["run", *words]))
        error = capfd.readouterr().err
        assert code == 1
        (line,) = error.splitlines()
        assert os.strerror(errno.ENOSPC) in line
        found = sorted(place.glob("run/checkpoints/*"))
        assert not list(place.rglob(".*"))
        expected = found[-1].name if found else "checkpoint"
        assert expected in line
        assert len(found) >= left
        if found:
            # On a disk with room, the run goes on to where it would have been.
            subprocess.run(["mount", "-o", "remount,size=1m", str(place)], check=True)
            assert call([*words, "--resume"], capfd).code == 0
            whole = tmp_path / "whole"
            assert call([*words[:-1], whole], capfd).code == 0
            assert rows(whole) == rows(place / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["rounds=-1"], "rounds.* -1"),
        (["data=user_components:LonelyRefusal"], "rank 1 on "),
    ],
)
def test_three_ranks_refuse_in_bounded_time_with_one_message(words, expected, tmp_path):
    target = tmp_path / "run"
    outcome = launch(3, *TINY[:3], *words, "--output", target, seconds=60)
    assert outcome.code == 2, outcome
    (line,) = outcome.messages
    assert re.search(expected, line)
    assert not target.exists()
