"""The commands that the pages on FedMM give: each is one that is accepted."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from mpifed.config.configuration import apply_overrides, parse_overrides, read_experiment, resolve

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = [
    found
    for page in ("fedmm.md", "surrogates.md")
    for found in re.findall(
        r"python -m mpifed\.run (fedmm[^`\n]*)", (DOCS / page).read_text(encoding="utf-8")
    )
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_of_the_page_is_accepted(command):
    experiment, *words = shlex.split(command)
    resolve(apply_overrides(read_experiment(experiment), parse_overrides(words)))
