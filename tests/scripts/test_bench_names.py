"""How scripts/bench tells its benchmarks."""

from __future__ import annotations

import importlib
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


def test_every_benchmark_can_be_named(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_training

    for path in SCRIPTS.glob("bench_*.py"):
        made = getattr(importlib.import_module(path.stem), "BENCHMARKS", {})
        assert made.keys() <= bench_training.BENCHMARKS.keys(), path.name
