"""docs/methods.md is what the code says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_page_of_methods_is_up_to_date(tmp_path):
    made = tmp_path / "methods.md"
    words = [sys.executable, str(ROOT / "scripts" / "methods.py"), str(made)]
    subprocess.run(words, check=True, timeout=120)
    said = "python scripts/methods.py writes docs/methods.md anew"
    assert made.read_text() == (ROOT / "docs" / "methods.md").read_text(), said
