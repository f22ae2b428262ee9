"""The report, from run directories written here in the promised format."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest
from reports import report
from run_directories import write_run

from mpifed.testing import run_command

FEDAVG = {"name": "fedavg"}
LOCAL = {"name": "local"}


def test_seeds_become_mean_and_deviation(tmp_path: Path) -> None:
    for seed, final in enumerate((0.74, 0.76, 0.78)):
        write_run(tmp_path / f"a{seed}", final=final, seed=seed)
    write_run(tmp_path / "b", final=0.7, algorithm=FEDAVG)
    found = report(tmp_path)
    assert not found.notes
    assert found.methods == {("synthetic-paper", "FedEM"): 3, ("synthetic-paper", "FedAvg"): 1}
    several, alone = found.rows()
    last = np.array([0.74, 0.76, 0.78]) - 0.25 * np.exp(-40 / 12)
    assert float(several["test_accuracy"]) == pytest.approx(last.mean())
    assert float(several["test_accuracy_deviation"]) == pytest.approx(0.02)
    assert alone["test_accuracy_deviation"] == ""


def test_what_differs_stands_in_the_name(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", local={"lr": 0.3})
    write_run(tmp_path / "c", exchange={"name": "gossip"})
    write_run(tmp_path / "d", clients=9)
    write_run(tmp_path / "e", checkpoint={"every": 7}, seed=1)
    assert report(tmp_path).methods == {
        ("synthetic-paper, clients=4", "FedEM, lr=0.1"): 2,
        ("synthetic-paper, clients=4", "FedEM, lr=0.3"): 1,
        ("synthetic-paper, clients=4", "D-FedEM"): 1,
        ("synthetic-paper, clients=9", "FedEM, lr=0.1"): 1,
    }


def test_where_optima_were_taken_from_is_no_difference(tmp_path: Path) -> None:
    for seed in range(2):
        algorithm = {"name": "flix", "optima_from": f"runs/{seed}-local"}
        write_run(tmp_path / str(seed), seed=seed, algorithm=algorithm)
    assert report(tmp_path).methods == {("synthetic-paper", "FLIX"): 2}


def test_table_has_the_shape_of_the_papers(tmp_path: Path) -> None:
    write_run(tmp_path / "a", final=0.75)
    write_run(tmp_path / "b", final=0.7, algorithm=FEDAVG)
    write_run(tmp_path / "c", final=0.9, data={"name": "digits"})
    lines = report(tmp_path).texts["table.md"].splitlines()
    assert lines[2:6] == [
        "| Data | FedEM | FedAvg |",
        "| --- | ---: | ---: |",
        "| synthetic-paper | 74.1 / 64.1 | 69.1 / 59.1 |",
        "| digits | 89.1 / 79.1 | – |",
    ]
    assert "| synthetic-paper | FedEM | 1 | 40 | 12.5 | 40 | 40 |" in lines


def test_unfinished_runs_are_included_and_named(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    half = write_run(tmp_path / "b", algorithm=FEDAVG, finished=False, until=20)
    with (half / "metrics.csv").open("a") as file:
        file.write("30,3.0,0.5,0.6")  # a line that is being written
    new = write_run(tmp_path / "c", algorithm=LOCAL, finished=False)
    (new / "metrics.csv").unlink()
    found = report(tmp_path)
    assert [(row["method"], row["finished"]) for row in found.rows()] == [
        ("FedEM", "true"),
        ("FedAvg", "false"),
        ("Local", "false"),
    ]
    of_half, of_new = found.notes
    assert str(half) in of_half and "20 of 40" in of_half
    assert str(new) in of_new


def test_means_leave_out_a_run_that_was_cut_short(tmp_path: Path) -> None:
    for seed in range(2):
        write_run(tmp_path / f"a{seed}", algorithm=FEDAVG, seed=seed, final=0.8)
    cut = write_run(tmp_path / "cut", algorithm=FEDAVG, seed=2, finished=False, until=0)
    found = report(tmp_path, "--against", "FedAvg")
    (row,) = found.rows()
    assert row["seeds"] == "2" and float(row["test_accuracy_deviation"]) == pytest.approx(0)
    answer = found.printed.partition("┏")[0]
    assert "79.1 ± 0.0 %" in answer and "1 of 3 seeds of FedAvg is unfinished" in answer
    assert any(str(cut) in note and "0 of 40" in note for note in found.notes)
    assert str(cut) in found.texts["report.html"].partition('id="runs"')[2]
    # A method is not compared with itself.
    assert "comparison.csv" not in found.texts and "in points" not in found.printed


def test_unfinished_runs_have_a_mean_at_the_last_round_alone(tmp_path: Path) -> None:
    for seed, until in enumerate((20, 20, 0)):
        write_run(tmp_path / str(seed), seed=seed, finished=False, until=until)
    (row,) = report(tmp_path).rows()
    assert (row["seeds"], row["rounds"], row["finished"]) == ("2", "20", "false")
    assert float(row["test_accuracy_deviation"]) == pytest.approx(0)


def test_a_repeated_run_counts_once(tmp_path: Path) -> None:
    short = write_run(tmp_path / "a", finished=False, until=10)
    whole = write_run(tmp_path / "b")
    found = report(tmp_path, whole)
    assert [(row["seeds"], row["rounds"]) for row in found.rows()] == [("1", "40")]
    (note,) = found.notes
    assert re.search(f"{short} .*{whole} ", note)


def test_command_writes_tables_and_pictures(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for seed in range(2):
        write_run(tmp_path / "runs" / f"a{seed}", final=0.75 + seed / 100, seed=seed, bits=3e6)
    write_run(tmp_path / "runs" / "b", final=0.7, algorithm=FEDAVG)
    write_run(tmp_path / "runs" / "c", final=0.66, algorithm=LOCAL, bits=0)
    write_run(tmp_path / "runs" / "d", exchange={"name": "gossip"}, bits=1e9)
    output = tmp_path / "report"
    assert run_command(["report", tmp_path / "runs", "--output", output]) == 0
    shown = capfd.readouterr().out
    assert "FedEM" in shown
    assert "decile" in shown
    curves = ("test-accuracy", "bottom-decile", "train-loss")
    pictures = {f"{curve}-{x}.png" for curve in curves for x in ("rounds", "bits")}
    assert {path.name for path in output.iterdir()} == {
        "report.html", "table.md", "table.csv", "clients.png", *pictures,
    }  # fmt: skip
    for picture in output.glob("*.png"):
        pixels = matplotlib.image.imread(picture)[:, :, :3]
        assert min(pixels.shape[:2]) > 600
        colours = (pixels * 8).astype(np.uint16) @ np.array([256, 16, 1], np.uint16)
        assert len(np.unique(colours)) > 10
    with (output / "table.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["method"] for row in rows] == ["FedEM", "FedAvg", "Local", "D-FedEM"]
    assert rows[0]["seeds"] == "2"
    assert float(rows[0]["up_bits"]) == 1.2e8
    assert rows[1]["test_accuracy_deviation"] == ""


def test_consensus_stands_beside_what_was_predicted(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    rate = {"p": 0.19, "tau": 1, "per_round": 0.81}
    write_run(tmp_path / "runs" / "a", exchange={"name": "gossip"}, predicted=rate,
              distances=lambda k: 4 * 0.7**k)  # fmt: skip
    write_run(tmp_path / "runs" / "b", algorithm=FEDAVG, exchange={"name": "gossip"},
              distances=lambda k: k / 10)  # fmt: skip
    write_run(tmp_path / "runs" / "c")
    assert run_command(["report", tmp_path / "runs", "--output", str(tmp_path / "report")]) == 0
    lines = (tmp_path / "report" / "table.md").read_text().splitlines()
    assert "| synthetic-paper | D-FedEM | 0.1900 | 1 | 0.8100 | 0.7000 | 2.547e-06 |" in lines
    assert "| synthetic-paper | D-FedAvg | – | – | – | – | 4.000e+00 |" in lines
    assert sum(line.startswith("| synthetic-paper | FedEM |") for line in lines) == 1
    assert any(re.search("local steps.*distance", line.lower()) for line in lines)
    with (tmp_path / "report" / "table.csv").open(newline="") as file:
        rows = {row["method"]: row for row in csv.DictReader(file)}
    assert float(rows["D-FedEM"]["measured_contraction"]) == pytest.approx(0.7)
    assert rows["FedEM"]["predicted_contraction"] == ""
    pixels = matplotlib.image.imread(tmp_path / "report" / "consensus-distance-rounds.png")
    assert min(pixels.shape[:2]) > 600


def test_a_run_at_the_level_of_rounding_is_measured_before_it(tmp_path: Path) -> None:
    gossip = {"exchange": {"name": "gossip"}}
    far = {0: 0, 10: 1, 20: 1e-14}
    write_run(tmp_path / "a", distances=lambda k: far.get(k, 1e-13), **gossip)
    write_run(tmp_path / "b", distances=lambda k: 1.0 + k, algorithm=FEDAVG, **gossip)
    one, other = report(tmp_path).rows()
    assert float(one["measured_contraction"]) == pytest.approx(1e-14**0.1)
    assert other["measured_contraction"] == ""


@pytest.mark.slow
def test_two_data_sets_have_pictures_of_their_own(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    write_run(tmp_path / "b", data={"name": "digits"})
    assert run_command(["report", tmp_path, "--output", str(tmp_path / "report")]) == 0
    names = {path.name for path in (tmp_path / "report").glob("*-clients.png")}
    assert names == {"synthetic-paper-clients.png", "digits-clients.png"}


def remove(name: str) -> Callable[[Path], None]:
    return lambda run: (run / name).unlink()


def replace(name: str, text: str) -> Callable[[Path], None]:
    return lambda run: (run / name).write_text(text) and None


def cut(name: str) -> Callable[[Path], None]:
    return lambda run: os.truncate(run / name, (run / name).stat().st_size // 2)


@pytest.mark.parametrize(
    ("damage", "part"),
    [
        (remove("config.yaml"), r"/run'.*config\.yaml"),
        (replace("config.yaml", "seed: 1\n"), r"config\.yaml.*\bclients\b"),
        (replace("metrics.csv", "round,seconds\n0,1\n"), r"metrics\.csv.*column"),
        (replace("summary.json", "[]"), r"summary\.json'.*damaged"),
    ],
)
def test_damage_is_one_sentence(
    damage: Callable[[Path], None],
    part: str,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    run = write_run(tmp_path / "run")
    damage(run)
    assert run_command(["report", run, "--output", str(tmp_path / "report")]) == 2
    error = capfd.readouterr().err
    assert error.count("\n") == 1
    assert re.search(part, error)
    assert not (tmp_path / "report").exists()


def measuring(path: Path, final: float, seed: int, name: str = "fedmm") -> None:
    """A run without accuracies whose objective falls to ``final``."""
    write_run(path, seed=seed, algorithm={"name": name}, finished=False)
    text = (path / "metrics.csv").read_text().splitlines()
    lines = [f"{text[0]},objective,surrogate_update"]
    for k, line in enumerate(text[1:]):
        fields = line.split(",")
        fields[2:9] = [""] * 7
        lines.append(",".join([*fields, str(final + 2.0**-k), "" if k == 0 else str(0.5**k)]))
    (path / "metrics.csv").write_text("\n".join(lines) + "\n")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for seed in range(2):
        measuring(tmp_path / f"a{seed}", 1.0 + seed, seed)
        measuring(tmp_path / f"b{seed}", 5.0, seed, "fedmm_theta")
    return tmp_path


def test_means_and_intervals_of_what_was_measured_stand_in_the_tables(runs: Path) -> None:
    found = report(runs)
    last, text = 2.0**-4, found.texts["table.md"]
    assert "| Data | Method | Seeds | Objective | Surrogate update | Rounds |" in text
    cells = [line.strip("| ").split(" | ")[:5] for line in text.splitlines() if "FedMM" in line]
    assert cells[:2] == [
        ["synthetic-paper", "FedMM", "2", f"{1.5 + last:.3f} ± 6.353", "0.06250 ± 0.00000"],
        ["synthetic-paper", "FedMM-Θ", "2", f"{5 + last:.3f} ± 0.000", "0.06250 ± 0.00000"],
    ]
    assert "Test accuracy" not in text
    first = found.rows()[0]
    assert float(first["objective"]) == pytest.approx(1.5 + last)
    assert float(first["objective_deviation"]) == pytest.approx(0.5**0.5)
    assert first["test_accuracy"] == ""


def test_validation_accuracy_is_in_per_cent_as_test_accuracy(tmp_path: Path) -> None:
    for seed, last in ((0, 0.5), (1, 0.75)):
        run = write_run(tmp_path / "runs" / str(seed), seed=seed)
        text = (run / "metrics.csv").read_text().splitlines()
        lines = [f"{line},{last}" for line in text[1:]]
        (run / "metrics.csv").write_text("\n".join([f"{text[0]},validation_accuracy", *lines, ""]))
    page = report(tmp_path / "runs").texts["report.html"]
    assert "Validation accuracy (%)" in page and "62.50 ± 158.83" in page
