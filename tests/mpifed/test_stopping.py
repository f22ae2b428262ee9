"""Runs that end before their last round because their scores say so, and the best round."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import OPEN_MPI, TINY, call, checked_refusal, checkpoints, launch, mpirun, rows

import mpifed
from mpifed.api import execute
from mpifed.mpi.communicator import Alone
from mpifed.testing import run_command
from mpifed.training.request import Request

LONG = {
    **{"clients": 4, "rounds": 12, "data.n_test": 20, "data.dimension": 20, "data.seed": 20},
    **{"evaluation.every": 2, "evaluation.validation_fraction": 0.2, "local.lr": 1.5},
}


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> mpifed.api.Result:
    """A run that nothing stops."""
    return mpifed.run(**LONG, output=tmp_path_factory.mktemp("whole") / "run")


def texts(run: Path) -> list[dict[str, str]]:
    """The rows of metrics.csv, without seconds."""
    return [{k: value for k, value in row.items() if k != "seconds"} for row in rows(run)]


def first_where(condition: np.ndarray, rounds: np.ndarray) -> int:
    return int(rounds[condition][0])


@pytest.mark.parametrize("sign", [">=", ">", "<=", "<"])
def test_a_run_stops_at_the_first_evaluated_round_where_the_condition_holds(
    sign, whole, tmp_path
) -> None:
    column = "test_accuracy" if ">" in sign else "train_loss"
    values, rounds = whole.metrics[column], whole.metrics["round"]
    bound = float(values[3])
    holds = {">=": values >= bound, ">": values > bound, "<=": values <= bound}
    expected = first_where(holds.get(sign, values < bound), rounds)
    stop = {"evaluation.stop_at": f"{column} {sign} {bound!r}"}
    result = mpifed.run(**LONG, **stop, output=tmp_path / "run")
    assert (result.status, result.summary["rounds"]) == ("stopped_at", expected)
    assert mpifed.read(tmp_path / "run").status == "stopped_at"
    assert texts(tmp_path / "run") == texts(whole.directory)[: expected // 2 + 1]
    assert f"round-{expected:06d}.h5" in checkpoints(tmp_path / "run")
    assert (tmp_path / "run" / "DONE").exists()


def test_a_stopped_run_is_complete_and_goes_on_without_its_condition(
    whole, tmp_path, capfd
) -> None:
    place = tmp_path / "run"
    words = [*(f"{key}={value}" for key, value in LONG.items()), "--output", place]
    stopped = call([*words, "evaluation.stop_at=round>=6"], capfd)
    assert stopped.code == 0 and "stopped_at round 6" in stopped.out
    before = (place / "metrics.csv").read_bytes()
    again = call(["--resume", "--output", place], capfd)
    assert again.code == 0 and "stopped_at round 6 before" in again.out
    assert (place / "metrics.csv").read_bytes() == before
    assert run_command(["verify", place, "--quiet"]) == 0
    assert call(["--resume", "--output", place, "evaluation.stop_at=null"], capfd).code == 0
    assert texts(place) == texts(whole.directory)
    assert mpifed.read(place).summary["state_digest"] == whole.summary["state_digest"]
    assert "stopped_by" not in mpifed.read(place).summary


def test_more_rounds_or_a_named_checkpoint_go_on_to_the_next_evaluation(tmp_path) -> None:
    words = {**LONG, "evaluation.stop_at": "round>=4"}
    run = mpifed.run(**words, output=tmp_path / "run").directory
    assert mpifed.run(output=run, resume=True, rounds=20).summary["rounds"] == 6
    assert mpifed.run(output=run, resume=True, rounds=20).summary["rounds"] == 6
    assert mpifed.run(resume=run, rounds=20).summary["rounds"] == 6
    newest = run / "checkpoints" / "round-000006.h5"
    assert mpifed.run(resume=newest, rounds=20).summary["rounds"] == 8


@pytest.mark.parametrize(("patience", "best"), [(1, None), (2, "train_loss"), (2, "test_accuracy")])
def test_patience_counts_evaluations_without_a_better_score(
    patience, best, whole, tmp_path
) -> None:
    column = best or "validation_accuracy"
    values = whole.metrics[column] * (1 if "accuracy" in column else -1)
    records = np.maximum.accumulate(values)
    since = [k - int(np.flatnonzero(values[: k + 1] == records[k])[0]) for k in range(len(values))]
    expected = int(next((2 * k for k, count in enumerate(since) if count >= patience), 12))
    more = {"evaluation.patience": patience, "checkpoint.best": best}
    result = mpifed.run(**LONG, **more, output=tmp_path / "run")
    assert result.summary["rounds"] == expected
    assert result.status == ("stopped_at" if expected < 12 else "finished")


def test_patience_goes_on_counting_after_an_interruption(tmp_path) -> None:
    words = {**LONG, "local.lr": 1e-12, "evaluation.patience": 3, "checkpoint.every": 1}
    plain = mpifed.run(**words, output=tmp_path / "plain")
    asked = iter([False, False, True])
    request = Request("synthetic-fedem", words, tmp_path / "cut", quiet=True)
    assert execute(request, Alone(), lambda: next(asked, False)).status == "stopped"
    resumed = mpifed.run(output=tmp_path / "cut", resume=True)
    assert (resumed.status, resumed.summary["rounds"]) == ("stopped_at", plain.summary["rounds"])
    assert texts(tmp_path / "cut") == texts(tmp_path / "plain")


def test_a_function_stops_the_run_by_returning_true_alone(tmp_path) -> None:
    def number(recorded):
        return recorded.round  # 1 is no True

    assert mpifed.run(**LONG, output=tmp_path / "number", on_round=number).status == "finished"
    result = mpifed.run(**LONG, output=tmp_path / "run", on_round=lambda row: row.round == 4)
    assert (result.status, result.summary["rounds"]) == ("stopped_at", 4)
    assert mpifed.run(output=tmp_path / "run", resume=True).summary["rounds"] == 4
    first = mpifed.run(**LONG, output=tmp_path / "first", on_round=lambda row: True)
    assert (first.summary["rounds"], checkpoints(first.directory)) == (0, ["round-000000.h5"])
    newest = tmp_path / "first" / "checkpoints" / "round-000000.h5"
    assert mpifed.run(resume=newest).status == "finished"
    assert texts(tmp_path / "first") == texts(tmp_path / "number")


def test_the_best_round_is_stored_and_loaded(whole, tmp_path) -> None:
    words = {**LONG, "checkpoint.every": 5, "checkpoint.keep": 1}
    for column in ("validation_accuracy", "train_loss"):
        values = whole.metrics[column] * (1 if "accuracy" in column else -1)
        expected = int(whole.metrics["round"][values.argmax()])  # the first of equals
        run = mpifed.run(**words, **{"checkpoint.best": column}, output=tmp_path / column)
        best = mpifed.load(run, "best")
        assert best.round == expected == run.summary["best_round"]
        there = mpifed.run(**{**words, "rounds": max(expected, 1), "reschedule": False})
        if expected:
            same = mpifed.load(there).components[0].state_dict().values()
            assert all(map(torch.equal, best.components[0].state_dict().values(), same))
        assert set(checkpoints(run.directory)) == {f"round-{k:06d}.h5" for k in (expected, 12)}
    with pytest.raises(mpifed.errors.InputError, match=r"checkpoint\.best"):
        mpifed.load(whole, "best")


def test_of_equal_rounds_the_earliest_is_the_best_also_after_a_resume(tmp_path) -> None:
    words = {**LONG, "checkpoint.best": "active_clients", "checkpoint.every": 1}
    run = mpifed.run(**{**words, "rounds": 5}, output=tmp_path / "run")
    assert mpifed.load(run, "best").round == 2  # round 0 has no participants
    mpifed.run(output=run.directory, resume=True, rounds=11)
    assert mpifed.load(run, "best").round == 2


def test_a_best_round_whose_checkpoint_is_lost_is_told(whole, tmp_path) -> None:
    run = Path(shutil.copytree(whole.directory, tmp_path / "run"))
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("best: null", "best: round"))
    with pytest.warns(UserWarning, match="round 0 has the best round"):
        assert mpifed.load(run, "best").round == 12


@pytest.mark.parametrize(
    ("word", "names"),
    [
        ("evaluation.stop_at=test_acuracy>=0.8", ["stop_at", "'test_accuracy'", "train_loss"]),
        ("evaluation.stop_at=test_accuracy=0.8", ["stop_at", ">=, <=, >, <"]),
        ("evaluation.stop_at=0.8", ["stop_at"]),
        ("evaluation.stop_at=state_digest>1", ["stop_at", "state_digest", "train_loss"]),
        ("evaluation.patience=3", ["patience", "validation_fraction"]),
        ("evaluation.patience=0", ["patience"]),
        ("checkpoint.best=validation_accuracy", [r"checkpoint\.best", "validation_fraction"]),
        ("checkpoint.best=accuracy", [r"checkpoint\.best", "'test_accuracy'"]),
    ],
)
def test_what_metrics_do_not_have_is_refused_before_anything_is_written(
    word, names, tmp_path, capfd
) -> None:
    checked_refusal(call([*TINY, word, "--output", tmp_path / "run"], capfd), *names)
    assert not (tmp_path / "run").exists()


def test_results_of_the_last_round_are_those_of_the_stop(tmp_path) -> None:
    shares = {"evaluation.unseen_fraction": 0.25, "evaluation.unseen_shares": [0.5, 1.0]}
    words = {**LONG, **shares}
    stopped = mpifed.run(**words, **{"evaluation.stop_at": "round>=4"}, output=tmp_path / "run")
    plain = mpifed.run(**{**words, "rounds": 4}, output=tmp_path / "plain")
    name = "test_accuracy_by_share"
    np.testing.assert_array_equal(stopped.clients[name], plain.clients[name])
    assert run_command(["verify", tmp_path / "run", "--last", 1, "--quiet"]) == 0


@pytest.mark.slow
def test_ranks_stop_alike(whole, tmp_path, monkeypatch) -> None:
    values = whole.metrics["train_loss"]
    stop = {"evaluation.stop_at": f"train_loss<={float(values[3])!r}", "checkpoint.best": "round"}
    one = mpifed.run(**LONG, **stop, output=tmp_path / "one")
    words = [f"{key}={value}" for key, value in {**LONG, **stop}.items()]
    done = launch(3, *words, "--output", tmp_path / "three")
    assert done.code == 0, done.err
    assert texts(tmp_path / "three") == texts(one.directory)
    assert checkpoints(tmp_path / "three") == checkpoints(one.directory)
    for name, value in (OPEN_MPI | {"PATH": f"{Path(mpirun()).parent}:/usr/bin:/bin"}).items():
        monkeypatch.setenv(name, value)
    two = mpifed.run(**LONG, output=tmp_path / "two", ranks=2, on_round="heard:stop_at_two")
    assert (two.status, two.summary["rounds"]) == ("stopped_at", 2)


@pytest.mark.slow
def test_a_sweep_and_a_report_take_a_stopped_run_for_complete(tmp_path) -> None:
    words = [*TINY, "seed=[0,1]", "evaluation.stop_at=round>=2", "--output", tmp_path / "sweep"]
    for _ in range(2):
        assert run_command(["sweep", *words]) == 0
        for seed in range(2):
            assert mpifed.read(tmp_path / "sweep" / f"seed={seed}").status == "stopped_at"
    page = tmp_path / "report"
    assert run_command(["report", tmp_path / "sweep", "--format", "none", "--output", page]) == 0
    assert "not finished" not in (page / "report.html").read_text(encoding="utf-8")
