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


def test_a_head_that_the_model_lacks_is_refused(tmp_path, capfd):
    words = ["digits-fedem", "model=mlp", "algorithm=fedrep", "algorithm.head=[layer.1]"]
    done = call([*words, "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and "algorithm.head has 'layer.1'" in done.messages[0]
    assert "did you mean 'layers.1'?" in done.messages[0]
    assert not (tmp_path / "run").exists()
