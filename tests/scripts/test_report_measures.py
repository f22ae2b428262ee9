"""What algorithms measure of themselves, in the report's tables and pictures."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from run_directories import write_run

from mpifed.components.tables import ALGORITHMS
from mpifed.report.__main__ import main
from mpifed.report.drawing import draw
from mpifed.report.groups import group_runs
from mpifed.report.intervals import Estimate
from mpifed.report.looks import COLOUR_OF
from mpifed.report.names import TITLES
from mpifed.report.page.results import _interval
from mpifed.report.runs import find_runs
from mpifed.report.tables import csv_text, markdown, measured
from mpifed.report.tables import measure_rows as rows


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
    groups, notes = group_runs(find_runs([runs]))
    assert measured(groups) == ["objective", "surrogate_update"]
    last = 2.0**-4
    assert rows(groups) == [
        ["synthetic-paper", "FedMM", f"{1.5 + last:.4g} ± 6.4", "0.0625 ± 0"],
        ["synthetic-paper", "FedMM-Θ", f"{5 + last:.4g} ± 0", "0.0625 ± 0"],
    ]
    text = markdown(groups, notes)
    assert "| Data | Method | Objective | Surrogate update |" in text
    assert "Test accuracy" not in text
    first = next(csv.DictReader(csv_text(groups).splitlines()))
    assert float(first["objective"]) == pytest.approx(1.5 + last)
    assert float(first["objective_deviation"]) == pytest.approx(0.5**0.5)
    assert first["test_accuracy"] == ""


def test_runs_that_measure_nothing_have_the_tables_they_had(tmp_path: Path) -> None:
    write_run(tmp_path / "a")
    groups, notes = group_runs(find_runs([tmp_path]))
    assert measured(groups) == []
    assert "Objective" not in markdown(groups, notes) + csv_text(groups)


def test_every_measure_is_drawn(runs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    groups, _ = group_runs(find_runs([runs]))
    files = draw(groups, runs)
    assert {path.name for path in files} == {"objective-rounds.png", "surrogate-update-rounds.png"}
    assert all(path.stat().st_size > 5000 for path in files)
    assert main([str(runs)]) == 0
    shown = capfd.readouterr().out
    assert "Objective" in shown
    assert "Average" not in shown


def test_validation_accuracy_is_in_per_cent_as_test_accuracy(tmp_path: Path) -> None:
    for seed, last in ((0, 0.5), (1, 0.75)):
        run = write_run(tmp_path / "runs" / str(seed), seed=seed)
        text = (run / "metrics.csv").read_text().splitlines()
        lines = [f"{line},{last}" for line in text[1:]]
        (run / "metrics.csv").write_text("\n".join([f"{text[0]},validation_accuracy", *lines, ""]))
    groups, _ = group_runs(find_runs([tmp_path]))
    assert rows(groups)[0][2] == "62.50 ± 158.83"
    out = tmp_path / "out"
    assert main([str(tmp_path / "runs"), "--output", str(out), "--format", "none"]) == 0
    page = (out / "report.html").read_text()
    assert "Validation accuracy (%)" in page and "62.50 ± 158.83" in page


def test_numbers_of_the_page_keep_their_last_zeros() -> None:
    assert _interval(Estimate(0.26491, 0.002, 3, 1.0), None) == "0.2649 ± 0.0020"
    assert _interval(Estimate(1.0, float("nan"), 1, 1.0), None) == "1.000"
    assert _interval(Estimate(2000.0, 30.0, 3, 1.0), None) == "2000 ± 30"


def test_every_method_has_a_name_in_the_letters_of_its_paper() -> None:
    assert set(ALGORITHMS) <= set(TITLES)
    assert set(COLOUR_OF) <= set(TITLES.values())
