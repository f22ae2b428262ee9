"""The page of a report in a real browser: opened from a file, by keyboard, printed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from run_directories import configuration, write_run

from mpifed.report.__main__ import main

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
    assert main([str(tmp_path / "runs"), "--output", str(out), "--format", "none"]) == 0
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


def test_a_pointer_reads_the_numbers_of_the_runs(opened):
    panel = opened.locator("svg.panel").first
    box = panel.bounding_box()
    panel.scroll_into_view_if_needed()
    panel.hover(position={"x": box["width"] * 0.66, "y": box["height"] / 2})
    shown = opened.locator("#readout").inner_text()
    # Seeds end at 0.70 and 0.72; at round 30 a run has its end minus 0.25 exp(-30 / 12).
    at_30 = 100 * (0.71 - 0.25 * np.exp(-30 / 12))
    assert "communication round: 30" in shown
    assert f"{at_30:.4g} (s.d. {100 * np.std([0.70, 0.72], ddof=1):.2g})" in shown
    opened.mouse.move(5, 5)
    assert opened.locator("#readout").is_hidden()


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
    wanted = {"a.", "input.", "button.toggle", "button.all", "svg.panel", "summary.", "img."}
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


def test_a_method_is_hidden_and_shown_by_its_button(opened):
    button, line = opened.locator("button.toggle").first, opened.locator("svg.panel g.line").first
    assert line.is_visible()
    button.focus()
    opened.keyboard.press("Space")
    assert button.get_attribute("aria-pressed") == "false"
    assert not line.is_visible()
    opened.locator("button.all").click()
    assert line.is_visible()


def test_the_axis_is_chosen_for_all_curves(opened):
    for x, words in (("bits", "Mbit"), ("seconds", "wall time (s)"), ("rounds", "round")):
        opened.locator(f"input[value={x}]").check()
        shown = opened.locator("figure[data-x]:visible")
        assert shown.count() == 3
        for k in range(3):
            assert words in str(shown.nth(k).locator("svg.panel").first.text_content())


def test_no_text_of_a_drawing_covers_another(opened):
    for box in opened.locator("svg.panel:visible").all():
        overlaps = box.evaluate(
            """panel => {
                const boxes = [...panel.querySelectorAll("text")].map(t => t.getBBox());
                const texts = [...panel.querySelectorAll("text")].map(t => t.textContent);
                const found = [];
                boxes.forEach((a, i) => boxes.slice(i + 1).forEach((b, j) => {
                    if (a.x < b.x + b.width - 1 && b.x < a.x + a.width - 1 &&
                        a.y < b.y + b.height - 4 && b.y < a.y + a.height - 4)
                        found.push([texts[i], texts[i + 1 + j]]);
                }));
                return found;
            }"""
        )
        assert overlaps == []


def test_it_prints_with_every_axis(opened):
    opened.emulate_media(media="print")
    assert opened.locator("figure[data-x]:visible").count() == 9
    assert opened.locator("button.copy:visible").count() == 0
    printed = opened.pdf(format="A4")
    assert printed.startswith(b"%PDF") and len(printed) > 20_000


def test_a_name_that_is_markup_is_shown_as_text(browser, tmp_path):
    evil = "<img src=x onerror=document.title='run'>"
    write_run(tmp_path / "run", data=configuration()["data"] | {"name": evil})
    out = tmp_path / "out"
    assert main([str(tmp_path / "run"), "--output", str(out), "--format", "none"]) == 0
    page = browser.new_page()
    page.goto((out / "report.html").as_uri())
    assert page.title() != "run"
    assert "<img" in page.locator("h1").inner_text()
    page.close()
