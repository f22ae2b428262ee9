"""Rows on their way to a tracker: nothing that it does may stop a run or hold it up."""

from __future__ import annotations

import logging
import re
import sys
import threading
import types
from pathlib import Path

import pytest
from commands import TINY, call

import mpifed
from mpifed.errors import InputError, RunError
from mpifed.tracking import TRACKERS, Sending, check_tracker

SMALL = {"clients": 4, "rounds": 4, "data.n_test": 20, "evaluation.every": 2}


class Fake:
    """Remembers what it was told."""

    def __init__(self, run=None) -> None:
        self.run, self.rows, self.ends = run, [], []

    def send(self, rows) -> None:
        self.rows += rows

    def close(self, status: str) -> None:
        self.ends.append(status)


@pytest.fixture
def fake(monkeypatch) -> list[Fake]:
    """Every run that is opened in a tracker called tensorboard."""
    opened: list[Fake] = []

    def open(about):
        opened.append(Fake(about))
        about.remember(f"name-{len(opened)}")
        return opened[-1]

    replace(monkeypatch, open)
    return opened


def replace(monkeypatch, opening) -> None:
    """Let the name tensorboard open something that needs no package."""
    changed = {**TRACKERS, "tensorboard": (opening, ())}
    for module in ("mpifed.tracking", "mpifed.training.callbacks"):
        monkeypatch.setattr(f"{module}.TRACKERS", changed)


def warnings_of(place: Path) -> list[str]:
    lines = (place / "log.txt").read_text().splitlines()
    return [line for line in lines if line.startswith("warning")]


def test_recorded_rows_are_sent_without_what_is_no_number(tmp_path: Path, fake) -> None:
    plain = mpifed.run(**SMALL, output=tmp_path / "plain")
    result = mpifed.run(**SMALL, output=tmp_path / "run", track="tensorboard")
    (one,) = fake
    assert [round for round, _ in one.rows] == [0, 2, 4] and one.ends == ["finished"]
    assert one.rows[2][1]["test_accuracy"] == result.metrics["test_accuracy"][-1]
    assert all(value == value for _, row in one.rows for value in row.values())
    assert "consensus_distance" not in one.rows[0][1]
    assert (one.run.name, one.run.first, one.run.identifier) == ("run", 0, None)
    assert one.run.configuration["evaluation"]["every"] == 2
    # The configuration and the numbers do not know of it.
    assert result.summary["state_digest"] == plain.summary["state_digest"]
    texts = [(tmp_path / name / "config.yaml").read_text() for name in ("plain", "run")]
    assert texts[0] == texts[1]
    assert not (tmp_path / "plain" / "tracking.json").exists()


def test_a_resumed_run_goes_on_under_the_same_name(tmp_path: Path, fake) -> None:
    place = tmp_path / "run"
    mpifed.run(**SMALL, output=place, track="tensorboard")
    mpifed.run(rounds=6, output=place, resume=True, track="tensorboard")
    assert (fake[1].run.identifier, fake[1].run.first) == ("name-1", 5)
    assert [round for round, _ in fake[1].rows] == [6]
    (place / "tracking.json").write_text("{")
    with pytest.raises(InputError, match=r"tracking\.json'.*line 1 "):
        mpifed.run(rounds=8, output=place, resume=True, track="tensorboard")


def test_a_failed_run_is_closed_as_such(tmp_path: Path, fake) -> None:
    def fail(recorded) -> None:
        if recorded.round:
            raise ValueError("enough")

    with pytest.raises(RunError, match="enough"):
        mpifed.run(**SMALL, output=tmp_path / "run", track="tensorboard", on_round=fail)
    assert fake[0].ends == ["failed"] and [round for round, _ in fake[0].rows] == [0, 2]


@pytest.mark.parametrize("where", ["open", "send", "close"])
def test_what_a_tracker_raises_is_one_warning(where, tmp_path: Path, monkeypatch) -> None:
    class Failing(Fake):
        def __init__(self, about) -> None:
            super().__init__(about)
            self.fail("open")

        def send(self, rows) -> None:
            self.fail("send")

        def close(self, status) -> None:
            self.fail("close")

        def fail(self, at: str) -> None:
            if at == where:
                raise SystemExit(f"no disk in {at}")

    replace(monkeypatch, Failing)
    result = mpifed.run(**SMALL, output=tmp_path / "run", track="tensorboard")
    assert result.status == "finished"
    (said,) = warnings_of(result.directory)
    assert re.search(f"tensorboard .*SystemExit: no disk in {where}", said)


def test_a_tracker_that_blocks_holds_nothing_up(caplog) -> None:
    blocked = threading.Event()

    class Blocked(Fake):
        def send(self, rows) -> None:
            blocked.wait(60)

    with caplog.at_level(logging.WARNING, "mpifed"):
        sending = Sending("mlflow", Blocked)
        sending.row(0, {})
        sending.close("finished", patience=0.05)
        sending.close("failed")
        (line,) = [record.getMessage() for record in caplog.records]
        assert re.search(r"mlflow .*0\.05 s", line)
    blocked.set()


def test_a_wrong_name_or_a_missing_package_is_refused_and_nothing_written(
    tmp_path: Path, capfd, monkeypatch
) -> None:
    words = [*TINY, "--output", tmp_path / "run", "--track"]
    wrong = call([*words, "tensorbord"], capfd)
    assert wrong.code == 2 and re.search("--track .*'tensorbord'.*'tensorboard'", wrong.err)
    with pytest.raises(InputError, match=r"track .*'wanb'.*'wandb'"):
        mpifed.run(**SMALL, output=tmp_path / "run", track="wanb")
    with pytest.raises(InputError, match=r"track .*True.*mlflow, tensorboard, wandb"):
        mpifed.run(**SMALL, output=tmp_path / "run", track=True, ranks=2)
    broken = types.ModuleType("wandb")
    for name, module, said in (
        ("mlflow", "mlflow.tracking", "mlflow"),
        ("tensorboard", "tensorboard", "tensorboard"),
    ):
        monkeypatch.setitem(sys.modules, module, None)
        missing = call([*words, name], capfd)
        assert missing.code == 2
        (line,) = missing.messages
        assert f"'{name}'" in line and said in line
        assert f"python -m pip install 'mpifed[{name}]'" in line
    monkeypatch.setitem(sys.modules, "wandb", broken)
    check_tracker("wandb")
    assert not (tmp_path / "run").exists()


def test_wandb_gets_a_run_of_the_same_id_and_no_questions(tmp_path: Path, monkeypatch) -> None:
    """Against a module with the calls of wandb that are used."""
    calls: list[tuple[str, object]] = []
    run = types.SimpleNamespace(
        define_metric=lambda name, step_metric: calls.append(("define", (name, step_metric))),
        log=lambda row: calls.append(("log", row)),
        finish=lambda exit_code: calls.append(("finish", exit_code)),
    )
    module = types.ModuleType("wandb")
    module.Settings = lambda **options: options
    module.setup = lambda settings: calls.append(("setup", settings))
    module.init = lambda **options: calls.append(("init", options)) or run
    monkeypatch.setitem(sys.modules, "wandb", module)
    monkeypatch.delenv("WANDB_PROJECT", raising=False)
    place = tmp_path / "run"
    mpifed.run(**SMALL, output=place, track="wandb")
    mpifed.run(rounds=6, output=place, resume=True, track="wandb")
    begun = [options for name, options in calls if name == "init"]
    assert len(begun) == 2 and begun[0]["id"] == begun[1]["id"] != ""
    assert begun[0]["resume"] == "allow" and begun[0]["project"] == "mpifed"
    assert begun[0]["config"]["clients"] == 4
    assert [row["round"] for name, row in calls if name == "log"] == [0, 2, 4, 6]
    assert [code for name, code in calls if name == "finish"] == [0, 0]
    assert warnings_of(place) == []
