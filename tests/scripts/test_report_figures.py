"""--figure and --grid: lines and cells of any column over any key."""

from __future__ import annotations

import csv
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from run_directories import fill_columns, write_run

from mpifed.report.__main__ import main
from mpifed.report.charts import Line
from mpifed.report.figure import (
    FigureRequest,
    best,
    chart_of,
    file_name,
    grid_csv,
    grid_markdown,
    grids,
    series,
)
from mpifed.report.groups import group_runs
from mpifed.report.names import look
from mpifed.report.runs import find_runs


def run_with_gap(path, alpha, k, seed=0, scale=1.0, **more):
    """A run whose gap falls as exp(-round / 10), with the numbers sent so far."""
    algorithm = {"name": "diana", "flix_alpha": alpha, **more}
    compression = {"name": "rand_k", "k": k}
    write_run(path, seed=seed, algorithm=algorithm, compression=compression)

    def fill(rows):
        for row in rows:
            row["objective_gap"] = f"{scale * alpha**2 * np.exp(-float(row['round']) / 10):.17g}"
            row["up_floats"] = str(4 * k * int(row["round"]))

    return fill_columns(path, fill)


@pytest.fixture
def sweep(tmp_path):
    for alpha in (1.0, 0.1):
        for k in (9, 22, 113):
            run_with_gap(tmp_path / "runs" / f"{alpha}-{k}", alpha, k)
    return tmp_path / "runs"


def test_a_line_for_each_value_and_a_panel_for_what_else_differs(sweep):
    wanted = FigureRequest("objective_gap", "floats", ("algorithm.flix_alpha",))
    found = {(s.panel, s.name): s for s in series(find_runs([sweep]), wanted)}
    assert set(found) == {
        (f"k={k}", f"flix_alpha={alpha}") for k in (9, 22, 113) for alpha in (0.1, 1.0)
    }
    line = found["k=22", "flix_alpha=0.1"]
    assert line.x.tolist() == [0, 880, 1760, 2640, 3520]
    assert line.y == pytest.approx(0.01 * np.exp(-np.arange(5.0)))


def test_last_values_against_a_key(sweep):
    wanted = FigureRequest("objective_gap", "algorithm.flix_alpha")
    found = series(find_runs([sweep]), wanted)
    assert len(found) == 3
    for s in found:
        assert s.x.tolist() == [0.1, 1.0]
        assert s.y == pytest.approx(np.array([0.01, 1.0]) * np.exp(-4))


def run_on(place: Path, name: str, gap: float, final: float, seed: int = 0, **options) -> None:
    topology = {"name": name, "seed": seed, **options}
    exchange = {"name": "gossip", "topology": topology}
    write_run(place / f"{name}{options}{seed}", final=final, seed=seed, exchange=exchange,
              graph={"spectral_gap": gap, "degree": 2})  # fmt: skip


def test_a_graph_is_a_point_with_its_name_averaged_over_draws(tmp_path):
    """Draws of a random graph have gaps of their own, and one point."""
    run_on(tmp_path, "ring", 0.1, 0.7)
    for p in (0.3, 0.6):
        for seed, gap in enumerate((0.4, 0.5, 0.6)):
            run_on(tmp_path, "erdos_renyi", gap + p, 0.7 + gap / 10, seed, p=p)
    wanted = FigureRequest("test_accuracy", "spectral_gap", spread="sd")
    (line,) = series(find_runs([tmp_path]), wanted)
    assert line.points == ("ring", "Erdős–Rényi, p = 0.3", "Erdős–Rényi, p = 0.6")
    assert line.x == pytest.approx([0.1, 0.8, 1.1])
    assert line.x_band == pytest.approx([0, 0.1, 0.1])
    assert line.y[1] == pytest.approx(0.75 - 0.25 * np.exp(-40 / 12))
    assert line.band == pytest.approx([0, 0.01, 0.01])


def test_names_of_points_are_drawn_and_cover_no_other_name(tmp_path):
    for k in range(6):
        run_on(tmp_path / "runs", f"graph_{k}", 0.5 + k / 1000, 0.7 + k / 1000)
    words = ["--figure", "test_accuracy", "--x", "spectral_gap", "--format", "svg"]
    assert main([str(tmp_path / "runs"), "--output", str(tmp_path / "out"), *words]) == 0
    drawn = (tmp_path / "out" / "test-accuracy-spectral-gap.svg").read_text("utf-8")
    names = re.findall(r'<text[^>]*x="([\d.]+)" y="([\d.]+)"[^>]*>graph (\d)</text>', drawn)
    assert {number for *_, number in names} == set("012345")
    places = np.array([[float(x), float(y)] for x, y, _ in names])
    apart = np.abs(places[:, None] - places[None])
    assert (apart.max(axis=2) + 99 * np.eye(6) > 9).all()


@pytest.mark.parametrize("key", ["exchange.topology.name", "exchange.topology", "topology"])
def test_a_legend_names_the_key_that_was_asked_for(key, tmp_path):
    for name in ("ring", "star"):
        run_on(tmp_path / "runs", name, 0.1, 0.7)
    words = ["--figure", "test_loss", "--by", key, "--format", "svg"]
    words[1] = "train_loss"
    assert main([str(tmp_path / "runs"), "--output", str(tmp_path / "out"), *words]) == 0
    drawn = (tmp_path / "out" / "train-loss-rounds-by-topology.svg").read_text("utf-8")
    assert "topology=ring" in drawn and "topology=star" in drawn


def test_seeds_are_averaged_and_where_a_run_began_is_no_difference(tmp_path):
    for seed, scale in ((0, 1.0), (1, 3.0)):
        run_with_gap(tmp_path / str(seed), 1.0, 9, seed, scale, start_from=f"runs/{seed}")
    (found,) = series(find_runs([tmp_path]), FigureRequest("objective_gap"))
    assert found.y == pytest.approx(2 * np.exp(-np.arange(5.0)))


def test_levels_are_lines_in_every_panel(sweep, tmp_path, capsys):
    levels = (("bound", 0.5),)
    found = series(find_runs([sweep]), FigureRequest("objective_gap", levels=levels))
    drawn = chart_of(found, FigureRequest("objective_gap")).lines
    levelled = [line for line in drawn if line.name == "bound"]
    assert len(levelled) == len({line.panel for line in drawn}) == 6
    assert all(line.y.tolist() == [0.5, 0.5] for line in levelled)
    words = [str(sweep), "--output", str(tmp_path), "--figure", "objective_gap"]
    assert main([*words, "--level", "bound=high"]) == 2
    assert "NAME=NUMBER" in capsys.readouterr().err


def test_the_command_draws_it(sweep, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--output", str(out), "--figure", "objective_gap", "--x", "floats"]
    assert main([str(sweep / "1.0-9"), str(sweep / "0.1-9"), *words]) == 0
    drawn = out / "objective-gap-floats.png"
    assert drawn.read_bytes().startswith(b"\x89PNG")
    assert str(drawn) in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--figure", "objectve_gap"], "'objectve_gap'.*'objective_gap'"),
        (["--figure", "objective_gap", "--x", "data.variant"], "--x.*'data.variant'.*number"),
        (["--figure", "consensus_distance"], "number.*'consensus_distance'"),
    ],
)
def test_what_cannot_be_drawn_is_refused_in_one_sentence(words, expected, sweep, tmp_path, capsys):
    assert main([str(sweep), "--output", str(tmp_path / "out"), *words]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(expected, line)


@pytest.mark.parametrize(
    ("column", "where"),
    [
        ("test_loss", 0.4),
        ("objective_gap", 0.4),
        ("test_accuracy", 0.2),
        ("test_recall_at_5", 0.2),
    ],
)
def test_the_best_recall_is_the_largest_and_the_best_loss_the_least(column, where):
    x, y = np.array([0.2, 0.4, 0.6]), np.array([0.9, 0.1, 0.5])
    line = Line(x, y, np.zeros(3), "", look(0))
    assert best(line, column) == where


def test_no_request_writes_over_the_figure_of_another():
    names = [
        file_name(FigureRequest("test_accuracy", x, by, linear))
        for x in ("rounds", "bits", "algorithm.flix_alpha")
        for by in ((), ("algorithm.name",), ("local.lr",))
        for linear in (False, True)
    ]
    assert len(set(names)) == len(names)
    assert not {"test-accuracy-rounds", "test-accuracy-bits"} & set(names)


ALPHA, STEP = "algorithm.flix_alpha", "algorithm.step"
WANTED = FigureRequest("validation_loss", STEP, (ALPHA,))
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
def steps(tmp_path: Path) -> Path:
    for (alpha, step), value in VALUES.items():
        run_of_grid(tmp_path / "runs" / f"{alpha}-{step}", alpha, step, value)
    return tmp_path / "runs"


def diverge(path: Path) -> None:
    (path / "DONE").unlink()
    (path / "clients.h5").unlink()
    (path / "summary.json").write_text(json.dumps({"status": "diverged", "rounds": 7}))


def test_rows_columns_and_the_least_of_each_row(steps: Path) -> None:
    (grid,) = grids(find_runs([steps]), WANTED)
    assert (grid.rows, grid.columns) == (["0.2", "1"], ["0.5", "5", "50"])
    assert grid.values[0].tolist() == [0.4, 0.3, 0.35]
    assert grid.values[1, :2].tolist() == [0.2, 0.25]
    assert np.isnan(grid.values[1, 2])
    assert grid.diverged.tolist() == [[False] * 3, [False, False, True]]
    assert grid.best.tolist() == [1, 0]


def test_the_table_says_what_the_picture_shows(steps: Path) -> None:
    found = grids(find_runs([steps]), WANTED)
    assert grid_markdown(found, WANTED).splitlines()[2:] == [
        "| flix_alpha \\ step | 0.5 | 5 | 50 |",
        "| --- | ---: | ---: | ---: |",
        "| 0.2 | 0.4 | **0.3** | 0.35 |",
        "| 1 | **0.2** | 0.25 | not finite |",
        "",
        "At an edge of the grid: flix_alpha=1.",
    ]
    rows = list(csv.DictReader(grid_csv(found, WANTED).splitlines()))
    assert [(row[ALPHA], row[STEP]) for row in rows if row["best"] == "1"] == [
        ("0.2", "5"),
        ("1", "0.5"),
    ]
    assert [row["validation_loss"] for row in rows if row["diverged"] == "1"] == [""]


def test_a_run_that_diverged_is_not_one_that_goes_on(steps: Path) -> None:
    diverge(steps / "0.2-5.0")
    run_of_grid(steps / "going on", 0.2, 500.0, 0.1, finished=False)
    runs = find_runs([steps])
    (grid,) = grids(runs, WANTED)
    assert grid.columns == ["0.5", "5", "50"]
    assert grid.diverged[0].tolist() == [False, True, False]
    assert grid.best[0] == 2
    assert "| 0.2 | 0.4 | not finite | **0.35** |" in grid_markdown([grid], WANTED)
    notes = group_runs(runs)[1]
    diverged, unfinished = sorted(notes)
    assert re.search(f"^{steps / '0.2-5.0'} diverged.*40 of 40", diverged)
    assert re.search(f"^{steps / 'going on'} .*unfinished.*40 of 40", unfinished)


def test_a_cell_without_a_run_is_no_cell_that_diverged(steps: Path) -> None:
    for path in (steps / "1.0-5.0").iterdir():
        path.unlink()
    (grid,) = grids(find_runs([steps]), WANTED)
    assert "| 1 | **0.2** | – | not finite |" in grid_markdown([grid], WANTED)


def test_seeds_are_averaged_and_what_else_differs_has_a_panel(steps: Path) -> None:
    run_of_grid(steps / "again", 0.2, 5.0, 0.5, seed=1)
    run_of_grid(steps / "other", 0.2, 5.0, 0.7, l2=0.1)
    run_of_grid(steps / "more", 0.2, 50.0, math.nan, l2=0.1)
    for path in steps.iterdir():  # the others said nothing of l2
        text = (path / "config.yaml").read_text()
        if "l2" not in text:
            text = text.replace("algorithm:", "algorithm:\n  l2: 0.0")
            (path / "config.yaml").write_text(text)
    found = grids(find_runs([steps]), WANTED)
    assert [grid.panel for grid in found] == ["l2=0.0", "l2=0.1"]
    assert found[0].values[0, 1] == pytest.approx(0.4)
    assert found[1].values.tolist() == [[0.7, pytest.approx(math.nan, nan_ok=True)]]


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
    assert done.stderr.count(": diverged ") == 2
    assert "2 of 4 runs" in done.stdout
    keys = ["--x", STEP, "--by", ALPHA]
    made = command("report", "runs", "--grid", "validation_loss", *keys, "--output", "out")
    assert made.returncode == 0, made.stderr
    table = (tmp_path / "out" / "validation-loss-grid-step-flix-alpha.md").read_text()
    assert "| flix_alpha \\ step | 0.01 | 1e+30 |" in table
    assert table.count("| not finite |") == 2
    assert re.search("diverged.*round 0 of 4", " ".join(made.stdout.split()))


TEXTS = {"data": {"name": "csv", "path": r"a$x^$\b_{$.csv"}}
FOREIGN = {
    "text.usetex": True,
    "font.size": 30.0,
    "figure.autolayout": True,
    "image.origin": "lower",
}


def test_pictures_depend_on_no_settings_of_the_user_and_names_are_no_formulas(tmp_path):
    for name in ("fedem", "fedavg"):
        write_run(tmp_path / "runs" / name, algorithm={"name": name, "of": "$x^$"}, **TEXTS)
    reports = [tmp_path / "plain", tmp_path / "foreign"]
    for report, settings in zip(reports, ({}, FOREIGN), strict=True):
        words = [str(tmp_path / "runs"), "--output", str(report), "--against", "FedEM"]
        words += ["--grid", "train_loss", "--x", "seed", "--by", "algorithm.of"]
        words += ["--title", "train-loss=$x^$", "--label", "FedAvg=$y_$", "--format", "svg"]
        with matplotlib.rc_context(settings):
            assert main(words) == 0
    pictures = list(reports[0].glob("*.svg"))
    assert len(pictures) >= 9
    for path in pictures:
        assert path.read_bytes() == (reports[1] / path.name).read_bytes()
    assert "$x^$" in (reports[0] / "train-loss-rounds.svg").read_text("utf-8")


@pytest.mark.parametrize(
    "words", ["mpifed.report RUN --output OUT", "topologies plot ring:n=4 --output OUT.svg"]
)
def test_a_backend_that_is_not_installed_is_not_asked_for(words, tmp_path):
    """A notebook says MPLBACKEND=module://matplotlib_inline.backend_inline to its commands."""
    names = {"RUN": str(write_run(tmp_path / "run")), "OUT": str(tmp_path / "out")}
    names["OUT.svg"] = str(tmp_path / "out.svg")
    line = [sys.executable, "-m", *(names.get(word, word) for word in words.split())]
    variables = os.environ | {"MPLBACKEND": "nowhere"}
    done = subprocess.run(line, env=variables, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
