"""Arrays have the shapes that signatures say, in runs and not only on paper."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import TINY, environment

import mpifed

HERE = Path(__file__).parent
IMPORTS = (ast.Import, ast.ImportFrom)
WRONG = """
import checked_shapes, numpy as np, torch
checked_shapes.check_shapes()
from jaxtyping import TypeCheckError
from mpifed.models.linear import Linear
w, x, y, q = torch.zeros(2, 4), torch.zeros(2, 5, 3), torch.zeros(2, 5), torch.ones(2, 5)
model = Linear(3, 1)
assert model.gradient(w, x, y.long(), q).shape == (2, 4)
for call in (
    lambda: model.gradient(w, x, y.long(), q[:1]),
    lambda: model.gradient(w[0], x, y.long(), q),
    lambda: model.logits(w, x[:1]),
):
    try:
        call()
    except TypeCheckError:
        continue
    raise AssertionError("a wrong shape was let through")
"""


def checked(*words, program=None):
    start = [str(HERE / "checked_shapes.py")] if program is None else ["-c", program]
    return subprocess.run(
        [sys.executable, *start, *map(str, words)],
        capture_output=True,
        text=True,
        timeout=180,
        env=environment(),
    )


@pytest.mark.slow
def test_a_wrong_shape_is_found():
    done = checked(program=WRONG)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        ("local.momentum=0.9", "exchange=server"),
        ("model=mlp", "exchange=gossip", "dtype=float64", "local.momentum=0"),
    ],
)
def test_runs_keep_to_the_shapes(words, tmp_path):
    done = checked(*TINY, *words, "--quiet", "--output", tmp_path / "run")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "run" / "DONE").exists()


def test_a_run_does_not_import_what_checks_them():
    """Only type checkers read the lines that do."""
    lines = []
    for path in Path(mpifed.__file__).parent.rglob("*.py"):
        text = path.read_text()
        if "jaxtyping" in text or "beartype" in text:
            kept = (node for node in ast.parse(text).body if not is_for_checkers(node))
            imports = (n for top in kept for n in ast.walk(top) if isinstance(n, IMPORTS))
            lines += [ast.unparse(node) for node in imports]
    assert len(lines) > 10
    assert not [line for line in lines if re.search("jaxtyping|beartype", line)]


def is_for_checkers(node: ast.stmt) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
