"""Grids over two keys: what stands in which cell, and what is marked."""

from __future__ import annotations

import csv
import json
import math
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from run_directories import fill_columns, write_run

from mpifed.report.__main__ import main
from mpifed.report.grid import grids
from mpifed.report.groups import group_runs
from mpifed.report.runs import find_runs
from mpifed.report.tables import WantedGrid
from mpifed.report.tables import grid_csv as csv_text
from mpifed.report.tables import grid_markdown as markdown

ALPHA, STEP = "algorithm.flix_alpha", "algorithm.step"
WANTED = WantedGrid("validation_loss", STEP, ALPHA)
VALUES = {
    (0.2, 0.5): 0.4,
    (0.2, 5.0): 0.3,
    (0.2, 50.0): 0.35,
    (1.0, 0.5): 0.2,
    (1.0, 5.0): 0.25,
    (1.0, 50.0): math.inf,
}


def run_of_grid(path: Path, alpha: float, step: float, value: float, seed=0, **more) -> Path:
    algorithm = {"name": "flix", "flix_alpha": alpha, "step": step, **more}
    finished = more.pop("finished", True)
    algorithm.pop("finished", None)
    write_run(path, algorithm=algorithm, seed=seed, finished=finished)

    def fill(rows):
        for row in rows:
            row["validation_loss"] = "0.6931"
            row["validation_accuracy"] = ""
            row["validation_recall_at_5"] = repr(1 - value)
        rows[-1]["validation_loss"] = repr(value)

    return fill_columns(path, fill)


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    for (alpha, step), value in VALUES.items():
        run_of_grid(tmp_path / "runs" / f"{alpha}-{step}", alpha, step, value)
    return tmp_path / "runs"


def diverge(path: Path) -> None:
    (path / "DONE").unlink()
    (path / "clients.h5").unlink()
    (path / "summary.json").write_text(json.dumps({"status": "diverged", "rounds": 7}))


def test_rows_columns_and_the_least_of_each_row(sweep: Path) -> None:
    (grid,) = grids(find_runs([sweep]), WANTED)
    assert (grid.rows, grid.columns) == (("0.2", "1"), ("0.5", "5", "50"))
    assert grid.values[0].tolist() == [0.4, 0.3, 0.35]
    assert grid.values[1, :2].tolist() == [0.2, 0.25]
    assert np.isnan(grid.values[1, 2])
    assert grid.diverged.tolist() == [[False] * 3, [False, False, True]]
    assert grid.best.tolist() == [1, 0]


def test_the_table_says_what_the_picture_shows(sweep: Path) -> None:
    found = grids(find_runs([sweep]), WANTED)
    assert markdown(found, WANTED).splitlines()[2:] == [
        "| flix_alpha \\ step | 0.5 | 5 | 50 |",
        "| --- | ---: | ---: | ---: |",
        "| 0.2 | 0.4 | **0.3** | 0.35 |",
        "| 1 | **0.2** | 0.25 | not finite |",
        "",
        "At an edge of the grid: flix_alpha=1.",
    ]
    rows = list(csv.DictReader(csv_text(found, WANTED).splitlines()))
    assert [(row[ALPHA], row[STEP]) for row in rows if row["best"] == "1"] == [
        ("0.2", "5"),
        ("1", "0.5"),
    ]
    assert [row["validation_loss"] for row in rows if row["diverged"] == "1"] == [""]


def test_of_a_recall_the_largest_is_the_best(sweep: Path) -> None:
    wanted = WantedGrid("validation_recall_at_5", STEP, ALPHA)
    (grid,) = grids(find_runs([sweep]), wanted)
    assert grid.best.tolist() == [1, 0]
    assert grid.values[0, 1] == pytest.approx(0.7)


def test_a_run_that_diverged_is_not_one_that_goes_on(sweep: Path) -> None:
    diverge(sweep / "0.2-5.0")
    run_of_grid(sweep / "going on", 0.2, 500.0, 0.1, finished=False)
    runs = find_runs([sweep])
    (grid,) = grids(runs, WANTED)
    assert grid.columns == ("0.5", "5", "50")
    assert grid.diverged[0].tolist() == [False, True, False]
    assert grid.best[0] == 2
    assert "| 0.2 | 0.4 | not finite | **0.35** |" in markdown([grid], WANTED)
    notes = group_runs(runs)[1]
    assert sorted(notes) == [
        f"{sweep / '0.2-5.0'} diverged: evaluated until round 40 of 40",
        f"{sweep / 'going on'} is unfinished: evaluated at round 40 of 40",
    ]


def test_a_cell_without_a_run_is_no_cell_that_diverged(sweep: Path) -> None:
    for path in (sweep / "1.0-5.0").iterdir():
        path.unlink()
    (grid,) = grids(find_runs([sweep]), WANTED)
    assert "| 1 | **0.2** | – | not finite |" in markdown([grid], WANTED)


def test_seeds_are_averaged_and_what_else_differs_has_a_panel(sweep: Path) -> None:
    run_of_grid(sweep / "again", 0.2, 5.0, 0.5, seed=1)
    run_of_grid(sweep / "other", 0.2, 5.0, 0.7, l2=0.1)
    run_of_grid(sweep / "more", 0.2, 50.0, math.nan, l2=0.1)
    for path in sweep.iterdir():  # the others said nothing of l2
        text = (path / "config.yaml").read_text()
        if "l2" not in text:
            text = text.replace("algorithm:", "algorithm:\n  l2: 0.0")
            (path / "config.yaml").write_text(text)
    found = grids(find_runs([sweep]), WANTED)
    assert [grid.panel for grid in found] == ["l2=0.0", "l2=0.1"]
    assert found[0].values[0, 1] == pytest.approx(0.4)
    assert found[1].values.tolist() == [[0.7, pytest.approx(math.nan, nan_ok=True)]]


def test_options_of_one_method_alone_are_no_difference_beside_its_name(tmp_path: Path) -> None:
    for name, more in (("fomaml", {"support_fraction": 0.8}), ("reptile", {})):
        for step in (1.0, 10.0):
            algorithm = {"name": name, "inner_step": step, "outer_step": 5.0, **more}
            write_run(tmp_path / f"{name}{step}", algorithm=algorithm)
    wanted = WantedGrid("test_loss", "algorithm.inner_step", "algorithm.outer_step")
    found = grids(find_runs([tmp_path]), wanted)
    assert [grid.panel for grid in found] == ["algorithm=fomaml", "algorithm=reptile"]


def test_the_command_draws_and_prints_it(sweep: Path, capsys, tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = ["--grid", "validation_loss", "--x", STEP, "--by", ALPHA, "--output", str(out)]
    assert main([str(sweep), *words]) == 0
    shown = capsys.readouterr().out
    assert "| 0.2 | 0.4 | **0.3** | 0.35 |" in shown
    for suffix in ("png", "md", "csv"):
        assert str(out / f"validation-loss-grid-step-flix-alpha.{suffix}") in shown
    pixels = matplotlib.image.imread(out / "validation-loss-grid-step-flix-alpha.png")[:, :, :3]

    def area(colour: str) -> int:
        wanted = np.array([int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)])
        return int((np.abs(pixels - wanted).max(axis=2) < 0.01).sum())

    assert area("#BDBDBD") > 1000  # one grey cell
    assert area("#D00000") > 300  # two frames


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            ["--grid", "validation_los", "--x", STEP, "--by", ALPHA],
            "did you mean 'validation_loss'",
        ),
        (
            ["--grid", "validation_loss", "--x", "step", "--by", ALPHA],
            "--x is 'step', which no run",
        ),
        (["--grid", "validation_loss", "--x", STEP, "--by", "alpha"], "--by is 'alpha', which no"),
        (
            ["--grid", "validation_accuracy", "--x", STEP, "--by", ALPHA],
            "no run has a finite number",
        ),
        (["--grid", "validation_loss", "--by", ALPHA], "--grid needs one key for its columns"),
        (["--grid", "validation_loss", "--x", STEP, "--by", ALPHA, STEP], "--grid needs one key"),
        (["--grid", "test_loss", "--figure", "test_loss", "--x", STEP, "--by", ALPHA], "give one"),
    ],
)
def test_what_cannot_be_tabulated_is_refused_in_one_sentence(words, expected, sweep, capsys):
    assert main([str(sweep), "--output", str(sweep / "out"), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert expected in line
    assert not (sweep / "out").exists()


def test_a_grid_needs_a_directory(sweep: Path, capsys) -> None:
    assert main([str(sweep), "--grid", "validation_loss", "--x", STEP, "--by", ALPHA]) == 2
    assert "--grid needs --output" in capsys.readouterr().err


@pytest.mark.slow
def test_a_sweep_in_which_runs_diverge_and_its_grid(tmp_path: Path) -> None:
    """Least squares with steps of which one is far too long, from the sweep to the picture."""

    def command(module: str, *words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", f"mpifed.{module}", *words],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            cwd=tmp_path,
        )

    words = ["flix-sine", "clients=3", "rounds=4", "data.split=1", "data.n_test=9", "model=linear"]
    words += ["algorithm.stop_at=null", "algorithm.local_iterations=3"]
    words += ["algorithm.flix_alpha=[0.5,1.0]", "algorithm.step=[0.01,1.0e+30]"]
    done = command("sweep", *words, "evaluation.validation_fraction=0.2", "--output", "runs")
    assert done.returncode == 1, done.stderr
    assert done.stderr.count(": diverged after ") == 2
    assert "2 of 4 runs are finished" in done.stdout
    keys = ["--x", STEP, "--by", ALPHA]
    made = command("report", "runs", "--grid", "validation_loss", *keys, "--output", "out")
    assert made.returncode == 0, made.stderr
    table = (tmp_path / "out" / "validation-loss-grid-step-flix-alpha.md").read_text()
    assert "| flix_alpha \\ step | 0.01 | 1e+30 |" in table
    assert table.count("| not finite |") == 2
    assert "diverged: evaluated until round 0 of 4" in made.stdout
