"""The page of a report in a real browser: opened from a file, by keyboard, printed."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from run_directories import configuration, write_run

from mpifed.testing import run_command

pytestmark = pytest.mark.slow

NAMES = ("chromium", "chromium-browser", "google-chrome")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: python -m pip install playwright"
    )
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"needs a browser: none of {', '.join(NAMES)} is installed")
    with playwright.sync_playwright() as running:
        # A browser cannot make its own sandbox for root, as in containers.
        words = ["--no-sandbox"] if os.geteuid() == 0 else []
        made = running.chromium.launch(executable_path=program, args=words, timeout=60_000)
        yield made
        made.close()


@pytest.fixture
def opened(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """A page of three methods, opened from its file; whatever the console says fails the test."""
    for seed in range(2):
        for name in ("fedem", "fedavg", "local"):
            run = write_run(tmp_path / "runs" / f"{name}{seed}", seed=seed, bits=1e6 + 1e6 * seed,
                            final=0.7 + seed / 50, algorithm={"name": name})  # fmt: skip
            with h5py.File(run / "clients.h5", "r+") as file:
                file["mixture"] = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.5, 0.5]])
    out = tmp_path / "out"
    assert (
        run_command(["report", str(tmp_path / "runs"), "--output", str(out), "--format", "none"])
        == 0
    )
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    page = context.new_page()
    page.set_default_timeout(30_000)
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto((out / "report.html").as_uri())
    yield page
    context.close()
    assert said == []
    assert [url for url in asked if not url.startswith(("file:", "data:"))] == []


def test_it_opens_from_a_file_and_all_pictures_load(opened):
    widths = opened.eval_on_selector_all("img", "all => all.map(i => i.naturalWidth)")
    assert widths and min(widths) > 0
    boxes = opened.eval_on_selector_all(
        "svg.panel", "all => all.map(s => s.getBoundingClientRect().width)"
    )
    assert sum(width > 300 for width in boxes) == 4  # three curves against rounds, and clients
    assert opened.screenshot(full_page=True).startswith(b"\x89PNG")
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")


TEXTS = """() => [...document.querySelectorAll('svg.panel text')]
  .filter(text => text.getClientRects().length && text.textContent.trim())
  .map(text => { const m = text.getScreenCTM(), style = getComputedStyle(text);
    return [parseFloat(style.fontSize) * Math.hypot(m.a, m.b), style.fill]; })"""


@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_charts_are_read_on_a_phone_and_in_the_dark(opened, width, scheme):
    opened.set_viewport_size({"width": width, "height": 900})
    opened.emulate_media(color_scheme=scheme)
    for size, fill in opened.evaluate(TEXTS):
        levels = [int(level) for level in re.findall(r"\d+", fill)[:3]]
        assert size >= 11
        assert (max(levels) > 150) if scheme == "dark" else (min(levels) < 150)
    ends = opened.eval_on_selector_all(
        "caption, figcaption", "all => all.map(c => c.getBoundingClientRect().right)"
    )
    assert ends and max(ends) <= width
    tops = opened.eval_on_selector_all(
        "#curves .chart:not([hidden])", "all => all.map(c => c.getBoundingClientRect().top)"
    )
    assert len(set(tops)) == (1 if width == 1400 else 3)  # three, side by side where there is room
    assert opened.evaluate("document.documentElement.scrollWidth <= innerWidth")


def number(text: str) -> float:
    return float(re.search(r"-?[\d.]+(e[-+]?\d+)?", text.replace("−", "-"))[0])


def test_all_curves_have_values_where_costs_differ(opened):
    """Of FedEM, FedAvg and Local, no two have been evaluated at the same number of bits."""
    opened.check("input[value=bits]")
    panel = opened.locator("#curves svg.panel:visible").first
    panel.focus()
    opened.keyboard.press("Home")
    for _ in range(2):
        opened.keyboard.press("ArrowRight")
    rows = opened.locator("#readout tr").all_inner_texts()
    assert len(rows) == 3 and "–" not in " ".join(rows)


def test_a_table_is_sorted_by_the_column_whose_head_is_clicked(opened):
    def column(index: int) -> list[str]:
        return opened.locator(f"#results tbody td:nth-child({index})").all_inner_texts()

    methods = column(1)
    opened.click("#results thead th:nth-child(1) .sort")
    assert column(1) == sorted(methods)
    opened.click("#results thead th:nth-child(1) .sort")
    assert column(1) == sorted(methods, reverse=True)
    opened.click("#results thead th:nth-child(2) .sort")
    numbers = list(map(number, column(2)))
    assert numbers == sorted(numbers, reverse=True)
    assert opened.get_attribute("#results thead th:nth-child(2)", "aria-sort") == "descending"


def test_a_reader_chooses_the_axis_and_smoothing_and_goes_back(opened):
    panel = opened.locator("#curves svg.panel:visible").first
    before = panel.inner_html()

    def value() -> float:
        panel.focus()
        opened.keyboard.press("Home")
        text = opened.locator("#readout tr").first.inner_text()
        opened.keyboard.press("Escape")
        return number(text.partition("\t")[2])

    start = value()
    opened.check("input[name=y][value=log]")
    assert panel.get_attribute("data-y").endswith(" 1")
    assert value() == pytest.approx(start, rel=1e-3)  # a value is the same on any axis
    opened.fill("#smoothing", "2")
    assert value() > start + 1  # the mean with the next two, of curves that climb
    opened.fill("#smoothing", "0")
    opened.check("input[name=y][value=usual]")
    assert panel.inner_html() == before


def test_a_table_on_a_phone_shows_that_it_goes_on(opened):
    opened.set_viewport_size({"width": 400, "height": 900})
    wide = opened.eval_on_selector_all(
        ".scroll", "all => all.filter(s => s.scrollWidth > s.clientWidth + 20).length"
    )
    assert wide
    table = opened.locator("#results .scroll")
    table.evaluate("s => s.scrollIntoView({ behavior: 'instant', block: 'center' })")
    place = table.bounding_box()
    corner = {"x": place["x"] + place["width"] - 4, "y": place["y"] + place["height"] - 3}
    clip = {**corner, "width": 3, "height": 2}
    at_start = opened.screenshot(clip=clip)
    table.evaluate("s => { s.scrollLeft = 9999; }")
    assert opened.screenshot(clip=clip) != at_start  # a shadow, gone at the end


def test_everything_is_reached_and_worked_by_keyboard(opened):
    reached = set()
    for _ in range(150):
        opened.keyboard.press("Tab")
        place = opened.evaluate(
            "(() => { const e = document.activeElement; if (e === document.body) return '';"
            "return e.tagName + '.' + (e.getAttribute('class') || ''); })()"
        )
        if not place:
            break
        reached.add(place.lower())
    wanted = {
        "a.",
        "input.",
        "button.toggle",
        "button.all",
        "button.sort",
        "svg.panel",
        "summary.",
        "img.",
    }
    assert wanted <= reached
    panel = opened.locator("svg.panel").first
    panel.focus()
    for _ in range(3):
        opened.keyboard.press("ArrowRight")
    assert "communication round: 20" in opened.locator("#readout").inner_text()
    opened.keyboard.press("End")
    assert "communication round: 40" in opened.locator("#readout").inner_text()
    opened.keyboard.press("Escape")
    assert opened.locator("#readout").is_hidden()
    opened.locator("img[data-values]").first.focus()
    opened.keyboard.press("ArrowRight")
    assert "client " in opened.locator("#readout").inner_text()


@pytest.mark.parametrize("width", [400, 500, 700])
def test_a_long_path_does_not_widen_the_page(browser, tmp_path, width):
    run = write_run(tmp_path / ("long_name_" * 15) / "run", finished=False, until=20)
    out = tmp_path / "out"
    words = ["report", str(run), "--output", str(out), "--format", "none"]
    assert run_command(words) == 0
    page = browser.new_page(viewport={"width": width, "height": 900})
    page.goto((out / "report.html").as_uri())
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.close()


def test_a_name_that_is_markup_is_shown_as_text(browser, tmp_path):
    evil = "<img src=x onerror=document.title='run'>"
    write_run(tmp_path / "run", data=configuration()["data"] | {"name": evil})
    out = tmp_path / "out"
    assert (
        run_command(["report", str(tmp_path / "run"), "--output", str(out), "--format", "none"])
        == 0
    )
    page = browser.new_page()
    page.goto((out / "report.html").as_uri())
    assert page.title() != "run"
    assert "<img" in page.locator("h1").inner_text()
    page.close()
