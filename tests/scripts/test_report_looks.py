"""Colours, names and places of the lines of a report: no two look alike, and all can be read."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_directories import write_run

from mpifed.components.tables import TABLES
from mpifed.report.__main__ import main
from mpifed.report.charts import LINES, Chart, Line, drawn, folded
from mpifed.report.drawing import STYLE, Pictures, figure_of, spread
from mpifed.report.groups import group_runs
from mpifed.report.looks import COLOUR_OF, COLOURS, DASHES, look, looks
from mpifed.report.names import TITLES, in_words
from mpifed.report.page.svg import panels
from mpifed.report.runs import find_runs
from topologies import FAMILIES, SCHEDULES
from topologies.weights.rules import WEIGHTS

ATTACKS = (None, {"name": "sign_flip", "fraction": 0.2})
GOSSIP = {"name": "gossip", "topology": None, "weights": None, "schedule": {"name": "static"}}
RANDOM = {"name": "erdos_renyi", "p": 0.5, "seed": None}
EXCHANGES: tuple[dict[str, Any], ...] = (
    {"name": "server"},
    GOSSIP | {"topology": RANDOM, "weights": {"name": "fmmc"}},
    GOSSIP | {"schedule": {"name": "groups:groups"}},
    {"name": "server", "aggregator": {"name": "median"}},
)


@pytest.fixture
def sixteen(tmp_path: Path) -> Path:
    """Two methods with four exchanges, each without and with an attack."""
    settings = itertools.product(("fedavg", "ditto"), EXCHANGES, ATTACKS)
    for number, (name, exchange, attack) in enumerate(settings):
        final = 0.5 + 0.01 * number
        write_run(tmp_path / "runs" / f"{number:02}", final=final, algorithm={"name": name},
                  exchange=exchange, attack=attack)  # fmt: skip
    return tmp_path / "runs"


def drawn_as(found: dict[str, Any]) -> set[tuple[str, tuple[float, ...]]]:
    return {(one.colour, one.strokes) for one in found.values()}


def chart_of(lines: dict[str, Any], names: dict[str, str] | None = None) -> Chart:
    x = np.arange(3.0)
    every = [
        Line(x, x + 0.01 * k, 0 * x, (names or {}).get(label, label), one, label)
        for k, (label, one) in enumerate(lines.items())
    ]
    return Chart("loss", "rounds", "Loss", "digits", "communication round", tuple(every))


def test_methods_of_one_colour_get_different_ones_beside_each_other() -> None:
    assert COLOUR_OF["APFL"] == COLOUR_OF["FedEM"]
    for order in itertools.permutations(["FedEM", "FedAvg", "APFL"]):
        found = looks([(name, name) for name in order])
        assert len({one.colour for one in found.values()}) == 3
        assert found["FedEM"].colour == COLOURS[0] and found["FedAvg"].colour == COLOURS[1]
        assert found["APFL"].colour == COLOURS[2]  # the next one that is free
    assert looks([("APFL", "APFL")])["APFL"].colour == COLOURS[0]


@given(st.sets(st.sampled_from(sorted(TITLES.values())), min_size=1, max_size=len(COLOURS)))
def test_as_many_methods_as_colours_have_each_its_own(titles: set[str]) -> None:
    found = looks([(title, title) for title in titles])
    assert len({one.colour for one in found.values()}) == len(titles)


@given(st.permutations(sorted(TITLES.values())))
def test_more_methods_than_colours_differ_within_a_panel(titles: list[str]) -> None:
    found = looks([(title, title) for title in titles])
    assert len(drawn_as(found)) == len(titles)
    for panel in chart_of(found).panels():
        assert len({(line.look.colour, line.look.strokes) for line in panel}) == len(panel) <= LINES


def test_settings_of_two_methods_share_a_colour_in_twos() -> None:
    methods = [(title, f"{title}, {k}") for title in ("FedAvg", "Ditto") for k in range(8)]
    found = looks(methods)
    assert len(drawn_as(found)) == 16
    mine = {t: {found[label].colour for title, label in methods if title == t} for t, _ in methods}
    assert not mine["FedAvg"] & mine["Ditto"]
    assert len(mine["FedAvg"]) == len(mine["Ditto"]) == 4
    assert found["FedAvg, 0"].colour == COLOURS[COLOUR_OF["FedAvg"]]


def test_the_setting_without_a_remark_has_the_colour_of_its_method() -> None:
    found = looks([(t, f"{t}{s}") for t in ("FedEM", "FedAvg") for s in (", b", ", c", ", d", "")])
    assert found["FedEM"].colour == COLOURS[0] and found["FedAvg"].colour == COLOURS[1]


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12))
def test_no_two_lines_of_a_panel_look_alike(counts: list[int]) -> None:
    found = looks([(f"m{m}", f"m{m}, {k}") for m, count in enumerate(counts) for k in range(count)])
    assert len(drawn_as(found)) == min(sum(counts), len(COLOURS) * len(DASHES)) or sum(counts) > 40
    chart = chart_of(found)
    assert sum(map(len, chart.panels())) == sum(counts)
    for panel in chart.panels():
        assert len({(line.look.colour, line.look.strokes) for line in panel}) == len(panel) <= LINES


def test_lines_that_look_alike_are_in_different_panels() -> None:
    chart = chart_of({"a": look(0), "b": look(1), "c": look(0)})
    assert [[line.name for line in panel] for panel in chart.panels()] == [["a", "b"], ["c"]]


def test_every_component_is_called_by_words() -> None:
    kinds = [names for kind, names in TABLES.items() if kind != "algorithm"]
    names = [name for table in (*kinds, FAMILIES, SCHEDULES, WEIGHTS) for name in table]
    assert len(names) > 60
    assert [name for name in names if "_" in in_words(f"FedAvg, {name}")] == []
    assert in_words("FedAvg, sign_flip") == "FedAvg, sign flipping"
    assert in_words("FedAvg, rand_k k=3") == "FedAvg, random k, k = 3"


def test_tables_and_the_page_have_the_same_names(
    sixteen: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    words = [str(sixteen), "--output", str(out), "--format", "none"]
    wanted = "D-FedAvg, sign flipping, Erdős–Rényi, p = 0.5, fastest-mixing weights"
    assert main([*words, "--against", wanted, "--label", f"{wanted}=mine"]) == 0
    said = capfd.readouterr().out
    for name in ("table.md", "comparison.md", "report.html"):
        text = (out / name).read_text()
        assert "Ditto, sign flipping, groups" in text
        assert "erdos_renyi" not in text or name == "report.html"  # which has configurations
    assert f"| {wanted} |" in (out / "comparison.md").read_text()
    assert ">mine<" in (out / "report.html").read_text()
    assert f"minus that of {wanted} with" in said and "sign_flip" not in said
    # The label of the CSV is understood as well.
    assert main([str(sixteen), "--against", "FedAvg, sign_flip"]) == 0
    assert main([str(sixteen), "--against", "FedAvg, sign flip"]) == 2
    assert "did you mean 'FedAvg, sign flipping'?" in capfd.readouterr().err


def test_a_component_of_ones_own_is_called_without_its_module(tmp_path: Path) -> None:
    for name in ("mine:Mine", "fedavg"):
        write_run(tmp_path / "a" / name.replace(":", "-"), algorithm={"name": name})
    groups, _ = group_runs(find_runs([tmp_path / "a"]))
    assert {group.words[1] for group in groups} == {"Mine", "FedAvg"}
    for name in ("one:Mine", "other.place:Mine"):
        write_run(tmp_path / "b" / name.replace(":", "-"), algorithm={"name": name})
    groups, _ = group_runs(find_runs([tmp_path / "b"]))
    assert {group.method for group in groups} == {"Mine, one:Mine", "Mine, other.place:Mine"}


def test_numbers_of_a_graph_belong_to_its_name(tmp_path: Path) -> None:
    ring = GOSSIP | {"topology": {"name": "ring"}, "weights": {"name": "fmmc"}}
    random = GOSSIP | {"topology": RANDOM | {"seed": 3}, "weights": {"name": "fmmc"}}
    write_run(tmp_path / "a", exchange=ring)
    write_run(tmp_path / "b", exchange=random)
    groups, _ = group_runs(find_runs([tmp_path]))
    names = [group.words[1] for group in groups]
    assert names == ["D-FedEM, ring", "D-FedEM, Erdős–Rényi, p = 0.5"]


def test_names_are_whole_and_beside_the_axis(sixteen: Path) -> None:
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    groups, _ = group_runs(find_runs([sixteen]))
    how = drawn(groups)
    names = {group.method: how.name(group) for group in groups}
    chart = chart_of({label: how.looks[label] for label in names}, names)
    with matplotlib.rc_context(STYLE):
        figure = figure_of(chart, Pictures())
        FigureCanvasAgg(figure).draw()
    written = []
    for axes, lines in zip(figure.axes, chart.panels(), strict=True):
        assert axes.get_xlabel() == "communication round"
        texts = [text for text in axes.texts if text.get_fontweight() == "bold"]
        assert len(texts) == len(lines)
        # Without the lines that lead to them.
        boxes = sorted(map(Text.get_window_extent, texts), key=lambda box: box.y0)
        assert boxes[0].y0 > axes.xaxis.label.get_window_extent().y1
        assert all(below.y1 <= above.y0 + 1 for below, above in itertools.pairwise(boxes))
        written += [text.get_text() for text in texts]
        assert [tick.get_text() for tick in axes.get_xticklabels()] == ["0", "1", "2"]
    assert {text.replace(",\n", ", ").replace("\n", ", ") for text in written} == set(
        names.values()
    )
    for svg in panels(chart, {label: k for k, label in enumerate(names)}):
        assert "…" not in svg
        assert 'class="x">0.5<' not in svg and 'class="x">1<' in svg


@given(st.lists(st.tuples(st.floats(0, 300), st.integers(1, 5)), min_size=1, max_size=8))
def test_names_of_several_rows_never_overlap_nor_leave_the_panel(
    names: list[tuple[float, int]],
) -> None:
    heights, rows = (np.array(each, dtype=float) for each in zip(*names, strict=True))
    sizes = 7 * rows
    after = spread(heights, sizes, (0.0, 300.0))
    order = np.argsort(after)
    assert ((after - sizes / 2)[order][1:] >= (after + sizes / 2)[order][:-1] - 1e-9).all()
    assert (after - sizes / 2).min() >= -1e-9 and (after + sizes / 2).max() <= 300 + 1e-9


def test_only_a_word_that_is_too_long_is_cut() -> None:
    assert folded(["M, " + "long_identifier_of_a_module"], 12) == ["M\nlong…module"]
    assert folded(["one two three four"], 10) == ["one two\nthree four"]
