"""A report of a hundred runs, as its benchmark makes them, but of a few rows."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from pages import assert_alone

import mpifed
from mpifed.report.__main__ import main

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from bench_answers import METHODS, RUNS, SEEDS, hundred_runs

ROWS = 12
MOST_BYTES, MOST_SERIES = 5_000_000, 6


@pytest.fixture(scope="module")
def hundred(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("hundred")
    small = {"clients": 20, "rounds": 2, "data.n_test": 50, "quiet": True}
    mpifed.run("synthetic-fedem", output=folder / "one", **small)
    hundred_runs(folder / "one", folder / "runs", ROWS)
    return folder


def test_a_hundred_runs_are_one_page_with_all_of_them(hundred, capsys):
    assert RUNS == len(METHODS) * SEEDS == 100
    output = hundred / "report"
    words = [str(hundred / "runs"), "--output", str(output), "--against", "FedAvg"]
    assert main([*words, "--size", "3x2"]) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith(str(output))]
    assert len(set(said)) == len(said)
    assert {Path(line) for line in said} == set(output.iterdir())
    pictures = [line for line in said if line.endswith(".png")]
    assert len(pictures) >= 6

    page = output / "report.html"
    assert page.stat().st_size < MOST_BYTES
    text = page.read_text(encoding="utf-8")
    tags = assert_alone(text)
    shown = set(re.findall(rf"<summary><code>{hundred}/runs/(\d+)</code>", text))
    assert shown == {str(number) for number in range(RUNS)}

    panels = re.findall(r'<svg class="panel".*?</svg>', text, re.DOTALL)
    assert len(panels) == sum(a.get("class") == "panel" for t, a in tags.found if t == "svg") > 0
    drawn = [re.findall(r'<g class="line" [^>]*data-name="([^"]*)"', panel) for panel in panels]
    assert all(0 < len(set(names)) == len(names) <= MOST_SERIES for names in drawn)
    assert len({name for names in drawn for name in names}) == len(METHODS)
    named = [a["aria-label"] for t, a in tags.found if t == "svg" and a.get("class") == "panel"]
    assert len(set(named)) == len(named)
