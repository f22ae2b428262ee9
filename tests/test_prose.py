"""No page uses a phrase of docs/phrases.txt, and docs/contents.md links every page."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]+`|<!--.*?-->|\]\([^)]*\)", re.MULTILINE | re.DOTALL)


@functools.cache
def phrases() -> dict[str, str]:
    """The phrases, and what to write in their place."""
    lines = (ROOT / "docs" / "phrases.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(":", 1) for line in lines if line and not line.startswith("#")]
    assert len({phrase for phrase, _ in pairs}) == len(pairs)
    return {phrase: instead.strip() or "nothing" for phrase, instead in pairs}


def found_in(text: str) -> list[str]:
    """Each line of a text that has a phrase, with the phrase; a line may break within it."""
    prose = CODE.sub(lambda code: re.sub(r"[^\n]", "_", code[0]), text)
    found = []
    for phrase, instead in phrases().items():
        words = r"\s+".join(map(re.escape, phrase.split()))
        for hit in re.finditer(rf"\b{words}\b", prose, re.IGNORECASE):
            line = prose.count("\n", 0, hit.start()) + 1
            found.append(f"line {line}: '{phrase}'; write {instead}")
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_has_none_of_the_phrases(page):
    assert found_in(page.read_text(encoding="utf-8")) == []


def test_the_contents_link_every_page():
    contents = ROOT / "docs" / "contents.md"
    text = contents.read_text(encoding="utf-8")
    linked = {(contents.parent / path).resolve() for path in re.findall(r"\]\(([^)#]+)", text)}
    pages = {*PAGES, *ROOT.glob("docs/**/*.ipynb")} - {
        contents,
        ROOT / "SECURITY.md",
        ROOT / "paper.md",
    }
    assert pages - linked == set()
    assert [path for path in linked if not path.exists()] == []


def test_phrases_are_found_across_lines_and_not_in_code():
    assert len(phrases()) >= 100
    text = "One.\nIn\norder to see:\n\n```sh\nin order to\n```\n`note that` Note that."
    assert found_in(text) == [
        "line 8: 'note that'; write nothing",
        "line 2: 'in order to'; write to",
    ]
