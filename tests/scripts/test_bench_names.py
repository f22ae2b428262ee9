"""How scripts/bench tells its benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


def test_help_names_all_benchmarks(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from bench_figures import run

    with pytest.raises(SystemExit):
        run({"first_one": lambda: None, "second_one": lambda: None}, ["--help"])
    said = capsys.readouterr().out
    assert "first_one, second_one" in " ".join(said.split())


def test_an_unknown_name_is_refused_with_those_there_are(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    from bench_figures import run

    assert run({"first_one": lambda: None}, ["other"]) == 2
    assert capsys.readouterr().err == "bench: there is no 'other'; there are: first_one\n"
