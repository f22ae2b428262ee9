"""What docs/local_steps.md says of options and names is so."""

from __future__ import annotations

import re
from pathlib import Path

from commands import call

from mpifed.local.options import LocalOptions

TEXT = (Path(__file__).parents[2] / "docs" / "local_steps.md").read_text(encoding="utf-8")


def test_the_table_has_every_option_and_its_default():
    found = dict(re.findall(r"^\| `(\w+)` \| `?([\w.-]+)`? \|", TEXT, re.MULTILINE))
    written = {"None": "null", "True": "true", "False": "false"}
    wanted = {k: written.get(str(v), str(v)) for k, v in vars(LocalOptions()).items()}
    assert {key: found.get(key) for key in wanted} == wanted


def test_a_head_that_the_model_lacks_is_refused(tmp_path, capfd):
    words = ["digits-fedem", "model=mlp", "algorithm=fedrep", "algorithm.head=[layer.1]"]
    done = call([*words, "--output", tmp_path / "run"], capfd)
    assert done.code == 2 and "algorithm.head has 'layer.1'" in done.messages[0]
    assert "did you mean 'layers.1'?" in done.messages[0]
    assert not (tmp_path / "run").exists()
