"""What a finished run must have recorded, also where parts of it had other intervals or ends."""

from __future__ import annotations

import csv
from pathlib import Path

from on_ranks import SMALL, run

from mpifed.api import Request, execute
from mpifed.checkpoint.files import Meta
from mpifed.mpi.communicator import Alone
from mpifed.training.request import resumed_after
from mpifed.training.verification import verify

RUN = {**SMALL, "clients": 4, "data.n_test": 10, "checkpoint.keep": 10}


def trained(folder: Path, **options) -> Path:
    run("synthetic-fedem", {**RUN, **options}, folder, Alone(), resume=folder.exists())
    return folder


def found(folder: Path) -> list[str]:
    return verify(folder, None, Alone(), lambda line: None).differences


def evaluated(folder: Path) -> list[int]:
    with (folder / "metrics.csv").open(newline="") as file:
        return [int(row["round"]) for row in csv.DictReader(file)]


def test_rounds_before_a_resume_may_have_another_interval(tmp_path):
    folder = trained(tmp_path / "run", **{"rounds": 4, "evaluation.every": 2})
    trained(folder, **{"rounds": 9, "evaluation.every": 3})
    assert evaluated(folder) == [0, 2, 4, 6, 9]
    assert resumed_after(folder / "log.txt") == 4
    assert found(folder) == []
    lines = (folder / "metrics.csv").read_text().splitlines(keepends=True)
    for round in (2, 4, 6):
        kept = [line for line in lines if not line.startswith(f"{round},")]
        (folder / "metrics.csv").write_text("".join(kept))
        assert found(folder) == [f"round {round}: metrics.csv has no row of it"]


def test_a_row_of_an_earlier_end_need_not_stay(tmp_path):
    folder = trained(tmp_path / "run", rounds=3)
    trained(folder, rounds=6)
    assert evaluated(folder) == [0, 2, 4, 6]
    assert found(folder) == []


def test_a_run_that_was_stopped_and_resumed_is_verified(tmp_path):
    folder, asked = tmp_path / "run", iter([False, False, True])
    request = Request("synthetic-fedem", {**RUN, "rounds": 6}, folder, quiet=True)
    assert execute(request, Alone(), lambda: next(asked)).status == "stopped"
    assert evaluated(folder) == [0, 2]
    trained(folder, rounds=6)
    assert resumed_after(folder / "log.txt") == 3
    assert found(folder) == []


def test_a_run_that_is_resumed_at_its_end_elsewhere_needs_no_checkpoint(tmp_path):
    first = trained(tmp_path / "first", rounds=4)
    point = first / "checkpoints" / "round-000004.h5"
    other = tmp_path / "other"
    request = Request("synthetic-fedem", {**RUN, "rounds": 4}, other, resume=point, quiet=True)
    execute(request, Alone(), lambda: False)
    assert not (other / "checkpoints").exists()
    assert found(other) == []


def test_a_resumed_run_without_its_log_is_judged_by_its_configuration(tmp_path):
    folder = trained(tmp_path / "run", **{"rounds": 4, "evaluation.every": 2})
    trained(folder, **{"rounds": 9, "evaluation.every": 3})
    (folder / "log.txt").unlink()
    assert found(folder) == ["round 3: metrics.csv has no row of it"]


def stored(rounds: int, every: int) -> dict:
    return {"rounds": rounds, "evaluation": {"every": every}}


def meta(round: int, configuration: dict, rows: list[int]) -> Meta:
    return Meta(round, 0, 9, configuration, ["round"], [[str(row)] for row in rows], {}, {})
