"""Runs that fail, are killed or are asked to stop, and what they go on with."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import commands
import pytest
import yaml
from commands import (
    TINY,
    call,
    checkpoints,
    in_child,
    launch,
    rows,
    summary_of,
)
from on_ranks import folder_of

from mpifed.api import Request, execute
from mpifed.checkpoint import files as checkpoint_files
from mpifed.checkpoint.files import what_is_left
from mpifed.config.configuration import apply_overrides, resolve
from mpifed.config.experiments import parse_overrides, read_experiment
from mpifed.data import archives
from mpifed.data.base import agreed
from mpifed.errors import StopRequested
from mpifed.mpi.communicator import Alone
from mpifed.testing import run_command, world
from mpifed.training.build import make
from mpifed.training.engine import Clock, Engine

OURS = (*TINY, "algorithm=user_components:Fails", "--quiet")
VARIANTS = {
    "server": [],
    "gossip": ["exchange=gossip"],
    "some take part": ["participation=0.5", "exchange=gossip"],
    "some are unseen": ["evaluation.unseen_fraction=0.3", "algorithm=fedem"],
    "some samples are held out": ["evaluation.validation_fraction=0.3", "participation=0.5"],
}


@pytest.fixture(autouse=True)
def users_modules(monkeypatch):
    monkeypatch.syspath_prepend(commands.HERE)


def killed(*words, fail: str | None = None, patch=None) -> int:
    """How the command ends in a child process that fails as ``fail`` or ``patch`` say."""

    def run() -> int:
        if fail is not None:
            os.environ["FAIL"] = fail
        if patch is not None:
            patch()
        return run_command(["run", *words])

    return in_child(run)


def same_run(one: Path, other: Path) -> None:
    """Both directories hold the same finished run."""
    assert rows(one) == rows(other)
    for key in (
        "status",
        "rounds",
        "test_accuracy",
        "test_accuracy_p10",
        "state_digest",
        "up_bits",
    ):
        assert summary_of(one)[key] == summary_of(other)[key] is not None
    assert (one / "DONE").exists()
    assert (other / "DONE").exists()


# A failing rank.


@pytest.mark.parametrize(
    ("fail", "expected"),
    [
        (
            "mistake:1:3",
            "clients 2 to 3.*'user_components:Fails'.* round 3.*ValueError",
        ),
        pytest.param(
            *("diverge:1:3", "round 3: client 3 .*update.*finite"),
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_failing_rank_ends_the_job_and_is_named(fail, expected, tmp_path, capfd):
    target = tmp_path / "run"
    began = time.monotonic()
    outcome = launch(2, *OURS, "--output", target, FAIL=fail)
    assert time.monotonic() - began < 30
    assert outcome.code != 0, outcome
    assert len(outcome.messages) == 1, outcome
    (line,) = outcome.messages
    assert line.startswith("mpifed: rank 1 on ")
    assert re.search(expected, line)
    assert outcome.err.count("Traceback") == ("mistake" in fail)
    assert not (target / "DONE").exists()
    if "diverge" in fail:
        # Rank 0, which hosts none of the clients that did.
        assert summary_of(target)["status"] == "diverged"
    else:
        assert not (target / "summary.json").exists()
    # The checkpoint that was being written was given the time.
    assert checkpoints(target) == ["round-000002.h5"]
    # On another number of ranks, and without the failure, the run goes on.
    whole = tmp_path / "whole"
    assert call([*OURS, "--resume", "--output", target], capfd).code == 0
    assert call([*OURS, "--output", whole], capfd).code == 0
    same_run(target, whole)


@pytest.mark.mpi
def test_a_rank_that_cannot_read_its_data_ends_the_job(tmp_path, capfd):
    target = folder_of(tmp_path) / "run"
    outcome = call([*TINY, "data=user_components:FailingData", "--output", target], capfd)
    assert outcome.code == 2, outcome
    assert len(outcome.messages) == (world().rank == 0)
    assert all("rank 1: data.path is 'here'" in line for line in outcome.messages)
    world().barrier()
    assert not target.exists()


# Killed.


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_killed_run_goes_on_as_if_nothing_had_happened(variant, tmp_path, capfd):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    words = [*OURS, "rounds=7", *VARIANTS[variant], "--output"]
    assert call([*words, whole], capfd).code == 0

    def die_at_the_fourth_file() -> None:
        written, seal = [], checkpoint_files.seal

        def sealed(path: Path) -> None:
            written.append(path)
            if len(written) == 2:
                os.kill(os.getpid(), signal.SIGKILL)
            seal(path)

        checkpoint_files.seal = sealed

    # In the midst of writing the checkpoint of round 4.
    assert killed(*words, cut, patch=die_at_the_fourth_file) == -signal.SIGKILL
    assert checkpoints(cut) == [".round-000004.h5.partial", "round-000002.h5"]
    assert [row["round"] for row in rows(cut)][:3] == ["0", "2", "4"]
    # Once more, in the midst of a round, if the algorithm is the one that can.
    if "algorithm=fedem" not in words:
        assert killed(*words, cut, "--resume", fail="die:0:6") == -signal.SIGKILL
        assert "round-000002.h5" in checkpoints(cut)
    assert call([*words, cut, "--resume"], capfd).code == 0
    assert checkpoints(cut) == ["round-000006.h5", "round-000007.h5"]
    assert not list(cut.glob(".*"))
    same_run(whole, cut)
    log = (cut / "log.txt").read_text()
    assert log.index("round 0/7") < log.index("resumed from") < log.index("finished")


# Asked to stop.


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_run_stops_while_its_data_are_read(number, tmp_path, capfd, monkeypatch):
    path, target = tmp_path / "own.csv", tmp_path / "run"
    path.write_text("a,label\n" + "1,0\n2,1\n" * 30)
    words = [f"data={path}", "clients=2", "rounds=2", "--output", target]

    def interrupted(path):
        os.kill(os.getpid(), number)
        return open(path, "rb")

    with monkeypatch.context() as patched:
        patched.setattr(archives, "open_regular", interrupted)
        done = call(words, capfd)
    assert done.code == 75 and "before round 1" in done.out
    assert not target.exists()
    assert call(words, capfd).code == 0


@pytest.mark.mpi
def test_a_stop_of_the_rank_that_reads_reaches_all_ranks():
    def read():
        raise StopRequested

    with pytest.raises(StopRequested):
        agreed(world(), read)


@pytest.mark.parametrize("request_", ["receive_usr1", "receive_term"])
def test_a_run_stops_on_request_with_a_checkpoint(request_, tmp_path, capfd, monkeypatch):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    words = [*OURS, "rounds=7", "checkpoint.every=4", "--output"]
    monkeypatch.setenv("FAIL", f"{request_}:0:3")
    assert call([*words, cut], capfd).code == 75
    assert checkpoints(cut) == ["round-000003.h5"]
    assert summary_of(cut)["status"] == "stopped"
    assert summary_of(cut)["rounds"] == 3
    assert not (cut / "DONE").exists()
    monkeypatch.delenv("FAIL")
    assert call([*words, cut, "--resume"], capfd).code == 0
    assert call([*words, whole], capfd).code == 0
    same_run(whole, cut)
    # Asked for in the last round, there is nothing to stop.
    monkeypatch.setenv("FAIL", f"{request_}:0:7")
    assert call([*words, tmp_path / "last"], capfd).code == 0


INTERRUPTED = """
import os, signal, sys
import mpifed

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == "torch.optim":
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupts())
try:
    mpifed.arrays([[1.0]], [0])
except KeyboardInterrupt:
    print("interrupted")
assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
mpifed.arrays([[1.0], [2.0]], [0, 1], clients=2)
"""


def test_an_interrupt_during_the_first_import_leaves_a_session_that_works():
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=100
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr


@pytest.mark.mpi
def test_these_ranks_go_on_with_what_one_rank_stopped(tmp_path):
    communicator = world()
    folder = Path(communicator.broadcast_object(str(tmp_path)))
    overrides = {**parse_overrides(TINY[1:]), "rounds": 6, "participation": 0.5}
    overrides["exchange"] = "gossip"

    def request(name: str, **more) -> Request:
        return Request("synthetic-fedem", overrides, folder / name, quiet=True, **more)

    if communicator.rank == 0:
        asked = iter([False, False, True])
        assert execute(request("cut"), Alone(), lambda: next(asked)).status == "stopped"
        execute(request("whole"), Alone(), lambda: False)
    communicator.barrier()
    # Only the last rank is asked to stop once more.
    last = communicator.rank == communicator.size - 1
    result = execute(request("cut", resume=True), communicator, lambda: last)
    assert result.status == "stopped"
    result = execute(request("cut", resume=True), communicator, lambda: False)
    assert result.status == "finished"
    if communicator.rank == 0:
        same_run(folder / "whole", folder / "cut")


# What a resume may change.


def trained(words, horizon: int) -> str:
    """The digest after all rounds under schedules over ``horizon`` rounds, without any resume."""
    mapping = apply_overrides(read_experiment(words[0]), parse_overrides(words[1:]))
    configuration = resolve(mapping)
    setup = make(configuration, Alone(), horizon)
    engine = Engine(setup, setup.hosted_shards(), Clock())
    while engine.round < configuration.rounds:
        engine.advance()
    return engine.digest()


@pytest.mark.parametrize(
    "schedule", ["linear", pytest.param("multi_step", marks=pytest.mark.slow), "cosine"]
)
def test_more_rounds_keep_the_horizon_of_schedules_unless_told_otherwise(schedule, tmp_path, capfd):
    words = [*TINY, f"local.lr_schedule={schedule}"]
    kept, changed = tmp_path / "kept", tmp_path / "changed"
    for target in (kept, changed):
        assert call([*words, "--quiet", "--output", target], capfd).code == 0
    more = [*words, "rounds=7"]
    assert call(["rounds=7", "--quiet", "--resume", "--output", kept], capfd).code == 0
    assert summary_of(kept)["state_digest"] == trained(more, 4)
    # A later resume keeps it too; one that is told otherwise does not, and only that one.
    assert call([*words, "rounds=8", "--quiet", "--resume", "--output", kept], capfd).code == 0
    assert summary_of(kept)["state_digest"] == trained([*words, "rounds=8"], 4)
    rescheduled = ["rounds=12", "reschedule=true", "--quiet", "--resume", "--output", changed]
    assert call(rescheduled, capfd).code == 0
    horizon_matters = schedule in ("multi_step", "cosine")
    digest = summary_of(changed)["state_digest"]
    assert (digest != trained([*words, "rounds=12"], 4)) == horizon_matters
    assert call(["rounds=13", "--quiet", "--resume", "--output", changed], capfd).code == 0
    stored = yaml.safe_load((changed / "config.yaml").read_text())
    assert stored["rounds"] == 13
    assert stored["reschedule"] is False
    assert stored["local"]["lr_horizon"] == 12


@pytest.mark.parametrize("clock", ["round", "local_epoch"])
def test_a_cosine_stays_at_its_end_and_the_log_says_so(clock, tmp_path, capfd):
    words = [*TINY, "algorithm=fedavg", "local.lr_schedule=cosine", f"local.lr_clock={clock}"]
    words += ["evaluation.every=1", "--output", tmp_path / "run"]
    assert "learning rate is 0" not in call(words, capfd).out
    assert "learning rate is 0" in call([*words, "rounds=11", "--resume"], capfd).out
    losses = [float(row["train_loss"]) for row in rows(tmp_path / "run")]
    assert losses[3] - losses[4] > 1e-5
    assert losses[5:] == pytest.approx([losses[4]] * 7, abs=1e-7)


def test_the_row_of_an_earlier_end_stays_after_any_interruption(tmp_path, capfd):
    target, plain = tmp_path / "run", tmp_path / "plain"
    words = [*OURS, "checkpoint.keep=1"]
    assert call([*words, "rounds=3", "--output", target], capfd).code == 0
    ended = rows(target)[-1]
    more = [*words, "rounds=7", "--output", target, "--resume"]
    for fail in ("die:0:4", "die:0:6"):  # before another checkpoint, and after one
        assert killed(*more, fail=fail) == -signal.SIGKILL
    assert call(more, capfd).code == 0
    assert call([*words, "rounds=7", "--output", plain], capfd).code == 0
    assert [row["round"] for row in rows(target)] == ["0", "2", "3", "4", "6", "7"]
    assert rows(target)[2] == ended and rows(target, 3) == rows(plain)


# What there is to go on with.


def test_a_finished_run_is_left_alone(tmp_path, capfd):
    target = tmp_path / "run"
    assert call([*TINY, "--quiet", "--output", target], capfd).code == 0
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in files(target)}
    for words in (
        [*TINY, "--resume", "--output", target],
        ["--resume", target / "checkpoints" / "round-000004.h5"],
        ["--resume", target],
        ["evaluation.every=1", "--resume", "--output", target],
    ):
        outcome = call(words, capfd)
        assert (outcome.code, outcome.err) == (0, "")
        assert outcome.out.count("\n") == 1 and str(target) in outcome.out
        assert before == {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in files(target)}
    # Even where somebody has removed its checkpoints to save space.
    for path in (target / "checkpoints").iterdir():
        path.unlink()
    assert call([*TINY, "--resume", "--output", target], capfd).code == 0
    assert (target / "metrics.csv").stat().st_mtime_ns == before[target / "metrics.csv"][1]


def files(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file())


def test_a_run_killed_between_its_last_checkpoint_and_its_summary_of(tmp_path, capfd):
    target, whole = tmp_path / "run", tmp_path / "whole"
    for place in (target, whole):
        assert call([*TINY, "--quiet", "--output", place], capfd).code == 0
    for name in ("DONE", "summary.json", "clients.h5"):
        (target / name).unlink()
    assert call(["--quiet", "--resume", "--output", target], capfd).code == 0
    same_run(target, whole)
    assert (target / "clients.h5").exists()


def test_damaged_checkpoints_are_named_and_passed_over(tmp_path, capfd):
    target, whole = tmp_path / "run", tmp_path / "whole"
    words = [*TINY, "checkpoint.keep=3"]
    assert call([*words, "rounds=6", "--quiet", "--output", target], capfd).code == 0
    assert call([*words, "rounds=8", "--quiet", "--output", whole], capfd).code == 0
    newest, middle, oldest = (target / "checkpoints" / f"round-00000{k}.h5" for k in (6, 4, 2))
    newest.write_bytes(newest.read_bytes()[:700])
    middle.write_bytes(b"hello")
    outcome = call([*words, "rounds=8", "--resume", "--output", target], capfd)
    assert outcome.code == 0
    for path in (newest, middle):
        assert outcome.out.count(str(path)) == 1
    assert "resumed from round-000002.h5" in outcome.out
    assert oldest.name in outcome.out
    same_run(target, whole)
    assert checkpoints(target) == [f"round-00000{k}.h5" for k in (4, 6, 8)]
    # Those that could not be read are kept.
    assert (target / "replaced-1" / "checkpoints" / newest.name).stat().st_size == 700
    assert (target / "replaced-1" / "checkpoints" / middle.name).read_bytes() == b"hello"


def test_where_no_checkpoint_is_intact_nothing_is_changed(tmp_path, capfd):
    target, whole = tmp_path / "run", tmp_path / "whole"
    for place in (target, whole):
        assert call([*TINY, "--quiet", "--output", place], capfd).code == 0
    (target / "DONE").unlink()
    for path in (target / "checkpoints").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    before = {path: path.read_bytes() for path in files(target)}
    outcome = call([*TINY, "--resume", "--output", target], capfd)
    assert outcome.code == 2
    for name in checkpoints(target):
        assert outcome.messages[0].count(name) == 1
    assert {path: path.read_bytes() for path in files(target)} == before
    outcome = call([*TINY, "--quiet", "--restart", "--output", target], capfd)
    assert outcome.code == 0, outcome.err
    same_run(target, whole)
    for path, content in before.items():
        if path.name != "log.txt":
            assert (target / "replaced-1" / path.relative_to(target)).read_bytes() == content
    # And once more, beside what was set aside before.
    assert call([*TINY, "--quiet", "--restart", "--output", target], capfd).code == 0
    assert (target / "replaced-2" / "DONE").exists()


def test_a_file_in_the_place_of_checkpoints_is_refused_and_nothing_changed(tmp_path, capfd):
    target = tmp_path / "run"
    assert call([*TINY, "--quiet", "--output", target], capfd).code == 0
    (target / "DONE").unlink()
    (target / "checkpoints").rename(tmp_path / "elsewhere")
    (target / "checkpoints").touch()
    before = {path: path.read_bytes() for path in files(target)}
    outcome = call([*TINY, "--resume", "--output", target], capfd)
    assert outcome.code == 2 and re.search(f"{target}/checkpoints ", outcome.err)
    assert {path: path.read_bytes() for path in files(target)} == before


def test_a_resume_without_a_run_says_so(tmp_path, capfd):
    outcome = call([*TINY, "--resume", "--output", tmp_path / "typo"], capfd)
    assert outcome.code == 0 and re.search("typo.* checkpoint", outcome.out)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--restart"], "--restart.*--output DIR"),
        (["--restart", "--resume"], "--resume.*--restart"),
        (["--resume", "x" * 300], "--resume x{9}"),
    ],
)
def test_words_about_an_earlier_run_that_say_nothing_are_refused(words, said, capfd):
    outcome = call(words, capfd)
    assert outcome.code == 2 and re.search(said, outcome.err)


def test_a_directory_that_cannot_be_read_hides_no_other_failure(tmp_path):
    (tmp_path / "checkpoints").touch()
    assert "checkpoints cannot be read" in what_is_left(tmp_path / "checkpoints")


def test_a_run_goes_on_from_where_it_is_told_to(tmp_path, capfd):
    source, branch, whole = (tmp_path / name for name in ("source", "branch", "whole"))
    words = [*TINY, "checkpoint.keep=3", "--quiet"]
    for target in (source, whole):
        assert call([*words, "rounds=6", "--output", target], capfd).code == 0
    first = source / "checkpoints" / "round-000002.h5"
    # In its own directory it cuts what came later,
    assert call(["--resume", first, "rounds=3", "--quiet"], capfd).code == 0
    assert [row["round"] for row in rows(source)] == ["0", "2", "3"]
    assert checkpoints(source) == ["round-000002.h5", "round-000003.h5"]
    # in another it leaves the first one as it is.
    before = [path.read_bytes() for path in files(source)]
    assert call(["--resume", first, "rounds=6", "--quiet", "--output", branch], capfd).code == 0
    same_run(branch, whole)
    assert [path.read_bytes() for path in files(source)] == before
