"""What a program is told while a run goes on, and what it reads afterwards."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
from pathlib import Path

import heard
import numpy as np
import pandas
import pytest
import torch
from commands import TINY, call, checkpoints, launch

import mpifed
from mpifed.errors import InputError, RunError
from mpifed.testing import run_command

SMALL = {"clients": 4, "rounds": 4, "data.n_test": 20, "evaluation.every": 2}


def test_the_function_gets_the_rows_of_metrics(tmp_path: Path) -> None:
    told = []
    plain = mpifed.run(**SMALL, output=tmp_path / "plain")
    result = mpifed.run(**SMALL, output=tmp_path / "told", on_round=told.append)
    assert [(one.round, one.last) for one in told] == [(0, False), (2, False), (4, True)]
    assert set(told[0].row) == set(result.metrics) - {"state_digest"}
    for number, one in enumerate(told):
        for name, value in one.row.items():
            assert type(value) is float
            assert value == result.metrics[name][number] or (
                math.isnan(value) and math.isnan(result.metrics[name][number])
            )
    with pytest.raises(dataclasses.FrozenInstanceError):
        told[0].round = 3
    # Nothing of it is part of the run.
    assert result.summary["state_digest"] == plain.summary["state_digest"]
    stored = [(tmp_path / name / "config.yaml").read_text() for name in ("plain", "told")]
    assert stored[0] == stored[1]


def test_a_program_gets_its_threads_back(tmp_path: Path) -> None:
    torch.set_num_threads(2)
    threads = []
    for function in (lambda recorded: threads.append(torch.get_num_threads()), _raise):
        with contextlib.suppress(RunError):
            mpifed.run(**SMALL, output=tmp_path / function.__name__, on_round=function)
        assert torch.get_num_threads() == 2
    assert run_command(["verify", tmp_path / "<lambda>", "--last", 1, "--quiet"]) == 0
    assert torch.get_num_threads() == 2 and threads == [1, 1, 1]


def _raise(recorded) -> None:
    raise ValueError("mine")


def test_what_the_function_raises_ends_the_run_and_it_can_be_resumed(tmp_path: Path) -> None:
    place = tmp_path / "run"
    with pytest.raises(RunError, match=r"fail_at_two.*round 2.*ValueError: the plot"):
        mpifed.run(**SMALL, **{"checkpoint.every": 1}, output=place, on_round=heard.fail_at_two)
    assert "round-000001.h5" in checkpoints(place)
    assert mpifed.read(place).status == "unfinished"
    assert mpifed.run(output=place, resume=True).status == "finished"
    with pytest.raises(KeyboardInterrupt):
        mpifed.run(**SMALL, output=tmp_path / "two", on_round=_interrupt)


def _interrupt(recorded) -> None:
    raise KeyboardInterrupt


def test_the_command_calls_a_function_by_name(tmp_path: Path, capfd, monkeypatch) -> None:
    monkeypatch.setenv("HEARD", str(tmp_path / "heard"))
    words = [*TINY, "rounds=2", "--output", tmp_path / "run", "--on-round", "heard:write"]
    assert call(words, capfd).code == 0
    lines = (tmp_path / "heard").read_text().splitlines()
    assert [line.split()[::2] for line in lines] == [["0", "False"], ["2", "True"]]
    wrong = call([*TINY, "--output", tmp_path / "no", "--on-round", "heard:wirte"], capfd)
    assert wrong.code == 2 and "'wirte'" in wrong.err
    assert not (tmp_path / "no").exists()


def test_ctrl_c_saves_and_a_second_one_ends_at_once(tmp_path: Path, capfd, monkeypatch) -> None:
    words = [*TINY, "--output"]
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    monkeypatch.setenv("TIMES", "1")
    done = call([*words, cut, "--on-round", "heard:interrupt"], capfd)
    assert done.code == 75 and f"--resume --output {cut}" in done.out
    assert checkpoints(cut) and not (cut / "DONE").exists()
    assert call(["--resume", "--output", cut], capfd).code == 0
    assert call([*words, whole], capfd).code == 0
    digests = [mpifed.read(run).summary["state_digest"] for run in (cut, whole)]
    assert digests[0] == digests[1]
    monkeypatch.setenv("TIMES", "2")
    ended = call([*words, tmp_path / "two", "--on-round", "heard:interrupt"], capfd)
    assert ended.code == 1 and "interrupted" in ended.err


def test_a_checkpoint_is_due_after_minutes(tmp_path: Path, capfd) -> None:
    words = [*TINY, "checkpoint.keep=9", "checkpoint.every=100", "--output"]
    for minutes, stored in ((1e-9, ["1", "2", "3", "4"]), ("null", ["4"])):
        place = tmp_path / str(minutes)
        assert call([*words, place, f"checkpoint.minutes={minutes}"], capfd).code == 0
        assert [name[-4:-3] for name in checkpoints(place)] == stored


@pytest.mark.slow
def test_only_rank_zero_calls_it_and_a_failure_ends_all_ranks(tmp_path: Path) -> None:
    words = [*TINY, "--output", tmp_path / "run", "--on-round"]
    done = launch(2, *words, "heard:write", HEARD=str(tmp_path / "heard"))
    assert done.code == 0, done.err
    assert [line[0] for line in (tmp_path / "heard").read_text().splitlines()] == ["0", "2", "4"]
    words[words.index("--output") + 1] = tmp_path / "two"
    failed = launch(2, *words, "heard:fail_at_two")
    assert failed.code == 1
    assert re.search("rank 0 .*fail_at_two.*round 2.*ValueError", failed.err)
    assert failed.err.count("Traceback") == 1


@pytest.mark.slow
def test_ranks_of_their_own_call_it_and_show_one_line(tmp_path: Path, capfd, monkeypatch) -> None:
    from commands import OPEN_MPI

    for name, value in (OPEN_MPI | {"HEARD": str(tmp_path / "heard")}).items():
        monkeypatch.setenv(name, value)
    mpifed.run(**SMALL, output=tmp_path / "run", ranks=2, on_round=heard.write, progress=True)
    assert len((tmp_path / "heard").read_text().splitlines()) == 3
    shown = capfd.readouterr().out.splitlines()
    assert [line[:9] for line in shown] == ["round 0/4", "round 2/4", "round 4/4"]


@pytest.mark.slow
def test_results_as_pandas(tmp_path: Path) -> None:
    result = mpifed.run(**SMALL, output=tmp_path / "run")
    frame = mpifed.read(tmp_path / "run").frame()
    assert list(frame.index) == [0, 2, 4] and frame.index.name == "round"
    assert frame.index.dtype == np.int64
    assert list(frame.columns) == [name for name in result.metrics if name != "round"]
    for name in ("test_accuracy", "train_loss", "consensus_distance"):
        np.testing.assert_array_equal(frame[name].to_numpy(), result.metrics[name])
    pandas.testing.assert_frame_equal(frame, result.frame())


def test_a_run_that_goes_on_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    mpifed.run(**SMALL, output=tmp_path)
    (tmp_path / "summary.json").unlink()
    with (tmp_path / "metrics.csv").open("a") as file:
        file.write("6,0.")
    going = mpifed.read(tmp_path)
    assert going.status == "unfinished" and list(going.metrics["round"]) == [0, 2, 4]
    with pytest.raises(InputError, match=r"checkpoints'.*config\.yaml"):
        mpifed.read(tmp_path / "checkpoints")
