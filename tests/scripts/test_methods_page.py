"""docs/methods.md is what the code says."""

from __future__ import annotations

import re
import runpy
import sys
from pathlib import Path

import pytest

from mpifed.testing import find_item, run_command

ROOT = Path(__file__).parents[2]
SCRIPT = runpy.run_path(str(ROOT / "scripts" / "pages" / "methods.py"))


def test_the_page_of_methods_is_up_to_date():
    said = "python scripts/pages/methods.py writes docs/methods.md anew"
    assert SCRIPT["text"]() == (ROOT / "docs" / "methods.md").read_text(encoding="utf-8"), said


def test_what_was_written_without_its_paper_is_marked(capsys):
    """Each module that says so has a class that the page marks, and ``--list`` says it too."""
    unread = re.compile(
        r"paper('s \w+| itself) could not\s+be had|abstracts?( alone)?\s+could be had"
    )
    components = {
        name: find_item(kind, name)
        for kind, table in (
            ("algorithm", SCRIPT["ALGORITHMS"]),
            ("correction", SCRIPT["CORRECTIONS"]),
        )
        for name in table
    }
    modules = {each.__module__ for each in components.values()}
    said = {each for each in modules if unread.search(sys.modules[each].__doc__ or "")}
    _, _, table = SCRIPT["text"]().partition("# Written without the paper's text\n")
    marked = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert {components[name].__module__ for name in marked} == said and len(said) > 5
    assert run_command(["run", "--list", "noloco"]) == 0
    assert "text could not be had: this is from" in capsys.readouterr().out


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


@pytest.mark.parametrize("method", ["fedavg", "fedavg_ft", "local", "fedem", "fedadam", "maml"])
def test_a_method_leads_to_its_equations(method):
    page, _, anchor = SCRIPT["place"](method).partition("#")
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    sections = re.split(r"^#+ (.*)\n", text, flags=re.MULTILINE)
    section = dict(zip(sections[1::2], sections[2::2], strict=True))
    (heading,) = [each for each in section if each.lower().replace(" ", "-") == anchor]
    assert "$$" in section[heading]


def test_every_method_is_in_one_group_with_its_paper_and_year():
    names = [name for names in SCRIPT["GROUPS"].values() for name in names.split()]
    assert sorted(names) == sorted(SCRIPT["ALGORITHMS"])
    for name in names:
        authors, title = SCRIPT["paper"](name)
        assert re.fullmatch(r"[^{}\\]+ (19|20)\d\d", authors) and len(title.split()) > 2
    assert SCRIPT["paper"]("fedlt")[0] == "Bastianello et al. 2024"


def test_the_pages_of_options_are_up_to_date():
    script = runpy.run_path(str(ROOT / "scripts" / "pages" / "configuration.py"))
    for name, text in script["PAGES"].items():
        said = f"python scripts/pages/configuration.py writes docs/{name} anew"
        assert text() == (ROOT / "docs" / name).read_text(encoding="utf-8"), said
