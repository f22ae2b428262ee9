"""Wrong words, of which the benchmark has some for every subcommand, need no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mpifed.__main__ import SUBCOMMANDS

SCRIPTS = Path(__file__).parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))

from bench_answers import WRONG  # noqa: E402

LARGE = {"torch", "mpi4py.MPI", "scipy", "sklearn", "matplotlib", "pandas"}

PROGRAM = f"""
import ast, sys
from mpifed.__main__ import main
for words in ast.literal_eval(sys.argv[2]):
    code = main([sys.argv[1], *words])
    print(code, sorted({LARGE} & set(sys.modules)))
"""


def test_there_are_wrong_words_for_every_subcommand():
    assert {*WRONG} == {*SUBCOMMANDS}


@pytest.mark.parametrize("subcommand", WRONG)
def test_a_wrong_word_is_refused_in_a_line_without_torch(subcommand, tmp_path):
    cases = WRONG[subcommand]
    words = [sys.executable, "-c", PROGRAM, subcommand, repr(cases)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=120, cwd=tmp_path)
    assert done.stdout == "2 []\n" * len(cases), done
    said = done.stderr.splitlines()
    assert len(said) == len(cases), said
    assert all(line.startswith(("mpifed", "topologies: ")) for line in said)
    assert list(tmp_path.iterdir()) == []
