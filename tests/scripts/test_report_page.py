"""The page of a report: what it shows, and that it needs nothing beside itself."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import assert_alone, parsed
from run_directories import fill_columns, write_run

from mpifed.components.tables import TABLES
from mpifed.report.__main__ import charts_by_data, main
from mpifed.report.charts import LINES, Chart, Line, around, thinned
from mpifed.report.groups import estimate, group_runs
from mpifed.report.names import COLOURS, TITLES, in_words, looks_of_methods
from mpifed.report.page import page
from mpifed.report.runs import find_runs
from topologies import FAMILIES, SCHEDULES
from topologies.weights.table import WEIGHTS

FEDAVG = {"name": "fedavg"}


def page_of(place: Path, **options) -> str:
    groups, notes = group_runs(find_runs([place]))
    return page(groups, notes, charts_by_data(groups, options.get("against")), **options)


@pytest.fixture
def compared(tmp_path: Path) -> Path:
    """FedEM and FedAvg with three seeds each, D-FedEM with one, and a run that warned."""
    runs = tmp_path / "runs"
    for seed in range(3):
        em = write_run(runs / f"em{seed}", final=0.75 + seed / 100, seed=seed)
        write_run(runs / f"avg{seed}", final=0.70 + seed / 50, seed=seed, algorithm=FEDAVG)
        with h5py.File(em / "clients.h5", "r+") as file:
            file["mixture"] = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])
    topology = {"name": "erdos_renyi", "p": 0.1}
    write_run(runs / "gossip", exchange={"name": "gossip", "topology": topology},
              distances=lambda k: 2 * 0.9**k,
              predicted={"p": 0.19, "tau": 1, "per_round": 0.81})  # fmt: skip
    (runs / "em0" / "log.txt").write_text("round 0\nwarning: <b>steps</b> are large\nround 40\n")
    summary = json.loads((runs / "em0" / "summary.json").read_text())
    summary["seconds"] = {"startup": 2.0, "local": 8.0, "exchange": 1.5, "total": 12.5}
    (runs / "em0" / "summary.json").write_text(json.dumps(summary | {"ranks": 4}))
    return runs


def test_it_loads_nothing_and_its_elements_are_closed(compared):
    assert_alone(page_of(compared))


def test_intervals_and_paired_differences_are_students(compared):
    words = " ".join(parsed(page_of(compared, against="FedAvg")).words)
    # Accuracies at the last round are final - 0.25 exp(-40 / 12): 73.1, 74.1, 75.1 and so on; with
    # three seeds Student's factor is 4.3027 / sqrt(3), and pairs differ by 5, 4, 3 points.
    last = 100 * (np.array([0.75, 0.76, 0.77]) - 0.25 * np.exp(-40 / 12))
    half = 4.302653 * last.std(ddof=1) / np.sqrt(3)
    assert f"{last.mean():.2f} ± {half:.2f}" in words
    assert "+4.00" in words
    assert "+4.00 ± 2.48" in words
    assert "0.020" in words


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=9))
def test_the_interval_is_scipys(values):
    from scipy import stats

    found, array = estimate(np.array(values)), np.array(values)
    assert found.mean == pytest.approx(array.mean(), abs=1e-12)
    if np.ptp(array) > 1e-6:
        low, high = stats.ttest_1samp(array, 0).confidence_interval(0.95)
        assert found.mean - found.half_width == pytest.approx(low, abs=1e-9)
        assert found.mean + found.half_width == pytest.approx(high, abs=1e-9)
        assert found.p_value == pytest.approx(stats.ttest_1samp(array, 0).pvalue, abs=1e-9)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=400), st.integers(1, 60))
def test_thinning_keeps_ends_and_extremes(values, intervals):
    array = np.array(values)
    places = thinned(array, intervals)
    assert len(places) <= max(2 * intervals + 2, 1)
    assert (np.diff(places) > 0).all()
    assert {0, len(array) - 1} <= set(places.tolist())
    assert array[places].min() == array.min()
    assert array[places].max() == array.max()


@pytest.mark.parametrize("log", [False, True])
def test_limits_contain_what_they_are_around(log):
    for low, high in ((1.0, 1.0), (0.5, 80.0), (70.0, 70.0), (1e-9, 1e-8)):
        below, above = around(low, high, log)
        assert below < low and high < above
        assert not log or below > 0


def test_what_a_run_says_of_itself_is_text_and_no_markup(tmp_path):
    evil = '"><script>alert(1)</script><img src=x onerror=alert(1)>'
    run = write_run(tmp_path / "a", data={"name": evil})
    (run / "log.txt").write_text(evil)
    tags = parsed(page_of(tmp_path))
    assert sum(tag == "script" for tag, _ in tags.found) == 1
    assert not any("onerror" in a for _, a in tags.found)


def test_an_unfinished_run_and_one_without_accuracy_have_a_page(tmp_path):
    write_run(tmp_path / "a", finished=False, until=20)
    new = write_run(tmp_path / "b", algorithm=FEDAVG, finished=False)
    (new / "metrics.csv").unlink()
    words = " ".join(parsed(page_of(tmp_path)).words)
    assert re.search(f"{tmp_path}/a .*20 of 40.*{tmp_path}/b .*unfinished", words, re.DOTALL)

    blank = {"test_accuracy": "", "test_accuracy_p10": "", "objective": "0.5"}
    run = write_run(tmp_path / "c" / "run", finished=False)
    fill_columns(run, lambda rows: [row.update(blank) for row in rows])
    assert "Objective" in " ".join(parsed(page_of(tmp_path / "c")).words)


@pytest.mark.slow
def test_pictures_in_three_formats_with_texts_of_ones_own(compared, tmp_path, capsys):
    out = tmp_path / "out"
    words = ["--format", "svg,pdf,png", "--size", "3x2", "--font", "DejaVu Serif"]
    words += ["--font-size", "8", "--title", "test-accuracy=How good (%)"]
    words += ["--label", "D-FedEM=by gossip", "--x-label", "clients=share of clients (%)"]
    runs = [str(compared / name) for name in ("em0", "avg0", "gossip")]
    assert main([*runs, "--output", str(out), *words]) == 0
    listed = [line for line in capsys.readouterr().out.splitlines() if line.startswith(str(out))]
    assert len(set(listed)) == len(listed)
    assert sorted(listed) == sorted(str(path) for path in out.iterdir())
    drawing = (out / "test-accuracy-rounds.svg").read_text()
    assert "How good (%)" in drawing and "by gossip" in drawing
    assert "share of clients (%)" in (out / "clients.svg").read_text()
    assert (out / "test-accuracy-bits.pdf").read_bytes().startswith(b"%PDF")
    assert "by gossip" in (out / "report.html").read_text()
    again = tmp_path / "again"
    assert main([*runs, "--output", str(again), "--format", "svg", *words[2:]]) == 0
    assert (again / "test-accuracy-rounds.svg").read_text() == drawing


GOSSIP = {"name": "gossip", "topology": None, "weights": None, "schedule": {"name": "static"}}
RANDOM = {"name": "erdos_renyi", "p": 0.5, "seed": None}
EXCHANGES: tuple[dict[str, Any], ...] = (
    {"name": "server"},
    GOSSIP | {"topology": RANDOM, "weights": {"name": "fmmc"}},
    GOSSIP | {"schedule": {"name": "groups:groups"}},
    {"name": "server", "aggregator": {"name": "median"}},
)


def drawn_as(found: dict[str, Any]) -> set[tuple[str, tuple[float, ...]]]:
    return {(one.colour, one.strokes) for one in found.values()}


def chart_of(lines: dict[str, Any], names: dict[str, str] | None = None) -> Chart:
    x = np.arange(3.0)
    every = [
        Line(x, x + 0.01 * k, 0 * x, (names or {}).get(label, label), one, label)
        for k, (label, one) in enumerate(lines.items())
    ]
    return Chart("loss", "rounds", "Loss", "digits", "communication round", tuple(every))


@given(st.sets(st.sampled_from(sorted(TITLES)), min_size=1, max_size=len(COLOURS)))
def test_as_many_methods_as_colours_have_each_its_own(titles: set[str]) -> None:
    found = looks_of_methods([(title, title) for title in titles])
    assert len({one.colour for one in found.values()}) == len(titles)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=8))
def test_no_two_lines_of_a_panel_look_alike(counts: list[int]) -> None:
    found = looks_of_methods(
        [(f"m{m}", f"m{m}, {k}") for m, count in enumerate(counts) for k in range(count)]
    )
    assert len(drawn_as(found)) == sum(counts)
    chart = chart_of(found)
    assert sum(map(len, chart.panels())) == sum(counts)
    assert max(map(len, chart.panels())) <= LINES


def test_every_component_is_called_by_words() -> None:
    kinds = [names for kind, names in TABLES.items() if kind != "algorithm"]
    names = [name for table in (*kinds, FAMILIES, SCHEDULES, WEIGHTS) for name in table]
    assert len(names) > 60
    assert [name for name in names if "_" in in_words(f"FedAvg, {name}")] == []
    assert in_words("FedAvg, sign_flip") == "FedAvg, sign flipping"
    assert in_words("FedAvg, rand_k k=3") == "FedAvg, random k, k = 3"
