"""Examples in docstrings give what they say."""

from __future__ import annotations

import doctest
import importlib
from pathlib import Path

import pytest

import mpifed
import topologies


def modules_with_examples():
    for package in (mpifed, topologies):
        root = Path(package.__file__).parent
        for path in sorted(root.rglob("*.py")):
            if ">>>" in path.read_text():
                parts = path.relative_to(root.parent).with_suffix("").parts
                yield ".".join(parts).removesuffix(".__init__")


@pytest.mark.parametrize("name", list(modules_with_examples()))
def test_examples_give_what_they_say(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
