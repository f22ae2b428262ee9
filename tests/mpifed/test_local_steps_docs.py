"""What docs/local_steps.md says of options and names is so."""

from __future__ import annotations

import json
import re
from pathlib import Path

from commands import call

TEXT = (Path(__file__).parents[2] / "docs" / "local_steps.md").read_text(encoding="utf-8")


def test_the_table_has_every_option_and_its_default(capfd):
    found = dict(re.findall(r"^\| `(\w+)` \| `?([\w.-]+)`? \|", TEXT, re.MULTILINE))
    sheets = json.loads(call(["--list", "local", "--json"], capfd).out)
    (sheet,) = [sheet for sheet in sheets if sheet["kind"] == "section"]
    defaults = {option["name"]: option["default"] for option in sheet["options"]}
    written = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in defaults.items()
    }
    assert len(written) > 5
    assert {name: found.get(name) for name in written} == written
