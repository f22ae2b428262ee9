"""The page of a report: what it shows, and that it needs nothing beside itself."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pages import assert_alone, parsed
from run_directories import fill_columns, write_run

from mpifed.report.__main__ import main
from mpifed.report.charts import LINES, Chart, Line, charts, drawn, kept
from mpifed.report.drawing import Pictures, beside, figure_of, save
from mpifed.report.figure import Wanted, file_name
from mpifed.report.groups import group_runs
from mpifed.report.intervals import estimate
from mpifed.report.looks import COLOURS, look, looks
from mpifed.report.names import in_words
from mpifed.report.page.document import page
from mpifed.report.page.svg import panels
from mpifed.report.runs import find_runs
from mpifed.report.scale import Scale, around

FEDAVG = {"name": "fedavg"}


def page_of(place: Path, **options) -> str:
    groups, notes = group_runs(find_runs([place]))
    return page(groups, notes, drawn(groups), **options)


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


def test_it_has_every_part(compared):
    tags = parsed(page_of(compared, words=["mpifed", "report", "my runs"]))
    headings = {a["id"] for t, a in tags.found if t == "section"}
    assert headings == {
        "results", "differences", "curves", "clients", "mixtures", "consensus", "settings",
        "time", "log", "runs",
    }  # fmt: skip
    words = " ".join(tags.words)
    assert "mpirun -n 4 python -m mpifed.run" in words
    assert "mpifed report 'my runs'" in words
    assert "warning: <b>steps</b> are large" in words  # as text, not as an element
    assert "D-FedEM" in words
    switched = {a["data-x"] for t, a in tags.found if t == "figure" and "data-x" in a}
    assert switched == {"rounds", "bits", "seconds"}
    focus = [a for t, a in tags.found if t == "svg" and a.get("class") == "panel"]
    assert focus and all(a["tabindex"] == "0" and a["aria-label"] for a in focus)


def test_simulated_seconds_are_an_axis_where_there_are_some(tmp_path):
    run = write_run(tmp_path / "a")
    fill_columns(run, lambda rows: [row.update(simulated_seconds=row["round"]) for row in rows])
    switched = {a.get("data-x") for t, a in parsed(page_of(tmp_path)).found if t == "figure"}
    assert "simulated-seconds" in switched


def test_intervals_and_paired_differences_are_students(compared):
    words = " ".join(parsed(page_of(compared, against="FedAvg")).words)
    # Accuracies at the last round are final - 0.25 exp(-40 / 12): 73.1, 74.1, 75.1 and so on; with
    # three seeds Student's factor is 4.3027 / sqrt(3), and pairs differ by 5, 4, 3 points.
    last = 100 * (np.array([0.75, 0.76, 0.77]) - 0.25 * np.exp(-40 / 12))
    half = 4.302653 * last.std(ddof=1) / np.sqrt(3)
    assert f"{last.mean():.2f} ± {half:.2f}" in words
    assert "+4.00" in words
    assert "+1.52 to +6.48" in words
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
    places = kept(array, intervals)
    assert len(places) <= max(2 * intervals + 2, 1)
    assert (np.diff(places) > 0).all()
    assert {0, len(array) - 1} <= set(places.tolist())
    assert array[places].min() == array.min()
    assert array[places].max() == array.max()


@given(
    st.floats(-1e6, 1e6), st.floats(1e-6, 1e6), st.integers(2, 8)
)  # fmt: skip
def test_ticks_are_within_the_axis_and_have_different_labels(low, width, count):
    scale = Scale(low, low + width, 0.0, 100.0)
    if scale.high - scale.low < 1e-9 * max(1.0, abs(low)):
        return
    ticks = scale.ticks(count)
    places = scale.at(np.array([value for value, _ in ticks]))
    assert (places >= -1e-6).all() and (places <= 100 + 1e-6).all()
    assert len(ticks) <= 2.6 * count + 2


@pytest.mark.parametrize("log", [False, True])
def test_limits_contain_what_they_are_around(log):
    for low, high in ((1.0, 1.0), (0.5, 80.0), (70.0, 70.0), (1e-9, 1e-8)):
        below, above = around(low, high, log)
        assert below < low and high < above
        assert not log or below > 0


def test_accuracy_is_never_on_a_logarithmic_axis(compared):
    groups, _ = group_runs(find_runs([compared]))
    found = charts(groups, drawn(groups))
    assert {chart.name: chart.y_log for chart in found if "accuracy" in chart.column} == {
        f"test-accuracy-{x}": False for x in ("rounds", "bits", "seconds")
    }
    for chart in found:
        assert "(" in chart.title or "loss" in chart.title or "‖" in chart.title
        assert chart.x_label


def test_the_same_method_has_the_same_colour_whatever_is_beside_it():
    alone = looks([("FedAvg", "FedAvg")])
    first = looks([("Local", "Local"), ("FedAvg", "FedAvg"), ("FedEM", "FedEM")])
    last = looks([("FedEM", "FedEM, lr=1"), ("FedEM", "FedEM, lr=2"), ("FedAvg", "FedAvg")])
    colours = {found["FedAvg"].colour for found in (alone, first, last)}
    assert colours == {COLOURS[1]}
    assert last["FedEM, lr=1"].colour == last["FedEM, lr=2"].colour
    assert last["FedEM, lr=1"].strokes != last["FedEM, lr=2"].strokes
    settings = looks([("FedEM", f"FedEM, lr={k}") for k in range(7)])
    assert len({one.colour for one in settings.values()}) == 7
    papers = ("FedEM", "FedAvg", "Local", "FedProx", "FedAvg+", "Clustered FL", "pFedMe")
    table = looks([(name, name) for name in papers])
    assert len({one.colour for one in table.values()}) == len(papers)


@pytest.mark.parametrize(("lines", "expected"), [(1, [1]), (6, [6]), (7, [4, 3]), (20, [5] * 4)])
def test_a_panel_has_at_most_six_lines(lines, expected):
    x = np.arange(3.0)
    every = tuple(Line(x, x, 0 * x, f"m{k}", look(k), f"m{k}") for k in range(lines))
    chart = Chart("loss", "rounds", "Loss", "", "round", every)
    assert [len(panel) for panel in chart.panels()] == expected
    numbers = {line.method: k for k, line in enumerate(every)}
    svgs = panels(chart, numbers)
    assert [svg.count('class="line"') for svg in svgs] == expected
    assert max(expected) <= LINES


def test_bands_become_bars_beside_each_other_where_they_would_merge():
    x = np.arange(5.0)

    def drawing(count: int) -> str:
        every = tuple(Line(x, x, 0.1 + 0 * x, f"m{k}", look(k), f"m{k}") for k in range(count))
        chart = Chart("loss", "rounds", "Loss", "", "round", every)
        return panels(chart, {line.method: k for k, line in enumerate(every)})[0]

    assert 'class="bars"' not in drawing(2)
    assert drawing(3).count('class="bars"') == 3
    moved = [k - 2.0 for k in range(5)]
    at = [beside(np.array([0.0, 40.0, 100.0]), moved, k, 4.0, (0.0, 100.0)) for k in range(5)]
    assert (np.diff(np.array(at), axis=0) > 3.999).all()
    assert np.min(at) >= 0 and np.max(at) <= 100


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("D-FedEM, erdos_renyi p=0.1", "D-FedEM, Erdős–Rényi, p = 0.1"),
        ("FedEM, lr=0.1", "FedEM, learning rate = 0.1"),
        ("Clustered FL", "Clustered FL"),
        ("synthetic-paper, clients=4", "synthetic-paper, clients = 4"),
    ],
)
def test_names_are_words(label, words):
    assert in_words(label) == words


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
    assert "is unfinished: evaluated at round 20 of 40" in words
    assert "nothing evaluated yet" in words

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


def test_a_picture_has_its_texts_and_equal_numbers_make_equal_files(tmp_path):
    import matplotlib

    x = np.arange(3.0)
    chart = Chart("loss", "rounds", "Loss", "", "round", (Line(x, x, x, "a name", look(0)),))
    made = Pictures(("svg", "pdf"), (3, 2), "DejaVu Serif", 8, {"loss": "How bad"})
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        with matplotlib.rc_context(made.style()):
            files = save(figure_of(chart, made), folder, chart.name, made)
        assert [path.name for path in files] == ["loss-rounds.svg", "loss-rounds.pdf"]
    svg = (tmp_path / "a" / "loss-rounds.svg").read_text()
    assert "How bad" in svg and "a name" in svg
    assert svg == (tmp_path / "b" / "loss-rounds.svg").read_text()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["--format", "gif"], "--format is 'gif'; it must be some of png, svg, pdf, or none"),
        (["--size", "3"], "it must be WIDTHxHEIGHT in inches"),
        (["--size", "3x900"], "both sides must be from 1 to 50 inches"),
        (["--font", "DejaVu Snas"], "did you mean 'DejaVu Sans'?"),
        (["--font-size", "0"], "it must be from 4 to 40 points"),
        (["--title", "accuracy"], "it must be NAME=TEXT"),
        (["--title", "test-acuracy=A"], "did you mean 'test-accuracy'?"),
        (["--label", "FedEm=A"], "did you mean 'FedEM'?"),
    ],
)
def test_options_of_pictures_are_refused_in_one_sentence(words, part, tmp_path, capfd):
    run = write_run(tmp_path / "run")
    assert main([str(run), "--output", str(tmp_path / "out"), *words]) == 2
    error = capfd.readouterr().err
    assert part in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()
    if words[0] == "--format":
        assert main([str(run), *words]) == 2
        assert "needs --output" in capfd.readouterr().err


def test_no_request_writes_over_the_figure_of_another():
    names = [
        file_name(Wanted("test_accuracy", x, by, linear, until=until))
        for x in ("rounds", "bits", "algorithm.flix_alpha")
        for by in ((), ("algorithm.name",), ("local.lr",))
        for linear in (False, True)
        for until in (None, 50.0)
    ]
    assert len(set(names)) == len(names)
    assert not {"test-accuracy-rounds", "test-accuracy-bits"} & set(names)


def test_heat_maps_of_many_clients_show_some_and_say_so(tmp_path):
    run = write_run(tmp_path / "a")
    with h5py.File(run / "clients.h5", "w") as file:
        file["client_id"] = np.arange(1000)
        file["test_accuracy"] = np.full(1000, 0.5)
        file["mixture"] = np.random.default_rng(0).dirichlet([0.4] * 3, 1000)
    tags = parsed(page_of(tmp_path))
    (picture,) = [a for t, a in tags.found if t == "img" and "data-values" in a]
    assert np.array(json.loads(picture["data-values"])).shape == (3, 200)
    assert "200 of the clients, evenly chosen" in " ".join(tags.words)


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [1, 5])
def test_a_hundred_runs_of_a_thousand_rows_are_at_most_5_mb(seeds, tmp_path):
    draws = np.random.default_rng(0)
    for k in range(100):
        name = ("fedem", "fedavg", "local", "fedprox")[k // seeds % 4]
        local = {"lr": 0.01 * (1 + k // seeds // 4)}
        run = write_run(tmp_path / str(k), seed=k % seeds, algorithm={"name": name}, local=local)
        header = (run / "metrics.csv").read_text().splitlines()[0]
        noise = draws.normal(0, 0.005, 1000)
        rows = [
            f"{r},{r / 80},{1 + e},{0.5 + e},{1 + e},{0.6 + e},{0.5 + e},0.4,0.05,4,{r * 96640},"
            f"{r * 96640},,{'0' * 64}"
            for r, e in enumerate(noise)
        ]
        (run / "metrics.csv").write_text("\n".join([header, *rows]) + "\n")
    text = page_of(tmp_path)
    assert len(text.encode()) <= 5_000_000
    words = " ".join(parsed(text).words)
    assert "thinned to what a screen shows: of 1000 points" in words
