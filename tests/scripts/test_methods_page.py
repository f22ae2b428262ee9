"""docs/methods.md is what the code says."""

from __future__ import annotations

import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_methods_is_up_to_date():
    made = runpy.run_path(str(ROOT / "scripts" / "methods.py"))["text"]()
    said = "python scripts/methods.py writes docs/methods.md anew"
    assert made == (ROOT / "docs" / "methods.md").read_text(encoding="utf-8"), said
