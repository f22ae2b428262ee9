"""The documentation as a site: built with warnings as errors, complete, and opened from disk."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mpifed

ROOT = Path(__file__).parents[2]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="needs mkdocs: scripts/docs installs it")
    folder = tmp_path_factory.mktemp("site") / "site"
    words = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    variables = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=280, env=variables
    )
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_and_every_public_module_has_its_page(site):
    pages = [path.relative_to(ROOT / "docs") for path in ROOT.glob("docs/**/*.md")]
    pages += [path.relative_to(ROOT / "docs") for path in ROOT.glob("docs/**/*.ipynb")]
    assert len(pages) > 60
    assert [page for page in pages if not (site / page).with_suffix(".html").exists()] == []
    hook = runpy.run_path(str(ROOT / "scripts" / "pages" / "site_pages.py"))
    for name in hook["public_modules"]():
        text = (site / "reference" / f"{name}.html").read_text(encoding="utf-8")
        module = importlib.import_module(name)
        own = [
            word
            for word, value in vars(module).items()
            if getattr(value, "__module__", None) == name and not word.startswith("_")
            if getattr(value, "__name__", None) == word  # no second name
            if inspect.isfunction(value) or inspect.isclass(value)
        ]
        assert [word for word in own if f'id="{name}.{word}"' not in text] == []


def test_no_page_asks_a_network(site):
    """For scripts, styles, fonts, pictures: what a browser fetches without being asked."""
    fetched = re.compile(r"<(?:script|img|link|iframe)[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>")
    for page in site.rglob("*.html"):
        assert fetched.findall(page.read_text(encoding="utf-8")) == [], page
    for sheet in site.rglob("*.css"):
        assert "url(http" not in sheet.read_text(encoding="utf-8"), sheet


def test_marks_of_tests_and_formulas_are_not_shown(site):
    for page in site.rglob("*.html"):
        assert "docs: run" not in page.read_text(encoding="utf-8"), page
    pages = ["notebooks/decentralised", "baselines/one_model", "baselines/clusters", "fedem"]
    for page in pages:
        text = (site / f"{page}.html").read_text(encoding="utf-8")
        assert "<math" in text and "$$" not in text and "\\leftarrow" not in text


def test_a_formula_at_the_begin_of_a_line_stays_in_its_sentence(site):
    text = (site / "notebooks" / "decentralised.html").read_text(encoding="utf-8")
    sentence = text[
        text.index("shrinks in each round by") : text.index("second largest eigenvalue")
    ]
    assert "<math" in sentence and "</p>" not in sentence


@pytest.fixture
def opened(site: Path) -> Iterator[Any]:
    """The start, opened from its file; whatever the console says fails the test."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="needs playwright: python -m pip install playwright"
    )
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip(f"needs a browser: none of {', '.join(BROWSERS)} is installed")
    with playwright.sync_playwright() as running:
        # A browser cannot make its own sandbox for root, as in containers.
        words = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = running.chromium.launch(executable_path=program, args=words, timeout=60_000)
        page = browser.new_page(viewport={"width": 1400, "height": 900})
        page.set_default_timeout(60_000)
        said: list[str] = []
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: said.append(request.url) if is_remote(request) else None)
        page.goto((site / "index.html").as_uri())
        yield page
        browser.close()
    assert said == []


def is_remote(request: Any) -> bool:
    return not request.url.startswith(("file:", "data:", "about:", "blob:"))


QUESTIONS = {
    "ten seeds": "run-ten-seeds",
    "Ctrl-C": "stop-with-ctrl-c-and-resume",
    "learning rate": "choose-the-learning-rate-on-validation-data",
    "missing values": "treat-missing-values",
    "AUC": "report-auc-f1-or-balanced-accuracy",
    "onnx": "export-to-onnx",
}


def test_search_works_without_a_server_and_leads_to_the_answer(opened):
    for words, section in QUESTIONS.items():
        opened.click("input.md-search__input")
        opened.keyboard.type(words)
        links = opened.locator("a.md-search-result__link")
        answer = opened.locator(f"a.md-search-result__link[href$='#{section}']")
        answer.first.wait_for(state="attached")
        assert "how_do_i.html" in links.first.get_attribute("href")
        opened.keyboard.press("Escape")
        opened.reload()


def test_a_question_is_answered_within_three_clicks(opened):
    opened.locator("nav.md-tabs a", has_text="How-to").click()
    opened.locator("nav.md-nav--secondary a:visible", has_text="resume").click()
    opened.wait_for_url("**/how_do_i.html#stop-with-ctrl-c-and-resume")


def test_the_start_has_three_cards_with_pictures(opened):
    cards = opened.locator(".grid.cards > ul > li")
    assert cards.count() == 3
    for card in cards.all():
        assert card.locator("img").evaluate("picture => picture.naturalWidth") > 100
        assert card.locator("a").count() >= 2


@pytest.mark.parametrize("page", ["how_do_i", "methods", "configuration", "notebooks/first_study"])
def test_code_and_tables_fit_and_copying_covers_no_text(opened, site, page):
    opened.goto((site / f"{page}.html").as_uri())
    excess = "nodes => Math.max(0, ...nodes.map(node => node.scrollWidth - node.clientWidth))"
    assert opened.eval_on_selector_all(".highlight pre > code", excess) == 0
    assert opened.eval_on_selector_all(".md-typeset__scrollwrap", excess) < 30  # its margins
    opened.set_viewport_size({"width": 400, "height": 900})
    assert opened.evaluate("document.documentElement.scrollWidth") == 400
    covered = """blocks => blocks.filter(block => {
        const button = block.querySelector('button');
        return button && button.getBoundingClientRect().left
            < block.querySelector('code').getBoundingClientRect().right;
    }).length"""
    assert opened.eval_on_selector_all(".highlight pre", covered) == 0


def test_pictures_are_dark_in_the_dark_scheme(opened):
    style = "picture => getComputedStyle(picture).filter"
    picture = opened.locator("article img").first
    assert picture.evaluate(style) == "none"
    opened.locator("form[data-md-component=palette] label:visible").click()
    assert "invert" in picture.evaluate(style)


def test_menus_have_the_words_that_are_looked_for(opened):
    menu = opened.locator("nav.md-nav--primary a:visible").all_inner_texts()
    assert {"Features", "Gallery", "Stability", "Use from scripts"} <= {
        each.strip() for each in menu
    }


def test_the_python_reference_says_what_each_name_does(site):
    text = (site / "reference" / "mpifed.html").read_text(encoding="utf-8")
    text = re.sub(r"<[^>]+>", "", text)
    for name in ("arrays", "frame", "load", "plot", "read", "run"):
        summary = (inspect.getdoc(getattr(mpifed, name)) or "").splitlines()[0]
        assert f"mpifed.{name}" in text and summary.replace("`", "") in text, name
