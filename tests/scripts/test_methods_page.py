"""docs/methods.md is what the code says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "pages" / "methods.py"))


def test_the_page_of_methods_is_up_to_date():
    said = "python scripts/pages/methods.py writes docs/methods.md anew"
    assert SCRIPT["text"]() == (ROOT / "docs" / "methods.md").read_text(encoding="utf-8"), said


SECTIONS = [
    pytest.param(page, heading, method, id=method)
    for page, sections in SCRIPT["PAGES"].items()
    for heading, methods in sections.items()
    for method in methods.split()
]


@pytest.mark.parametrize(("page", "heading", "method"), SECTIONS)
def test_a_page_says_where_paper_and_code_differ(page, heading, method):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    assert method in text
    if heading:
        _, found, rest = text.partition(f"# {heading}\n")
        assert found
        text = re.split(r"^#+ ", rest, maxsplit=1, flags=re.MULTILINE)[0]
    assert "paper and code" in text.lower()
