"""mpifed and a bare loop do the same work; the table has what was measured."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_peers

    return bench_peers


@pytest.mark.slow
def test_mpifed_and_a_bare_loop_learn_alike(bench, capsys):
    bench.peers(1, ("mpifed", "bare loop"), (1, 12))
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["detail"]["workload"], one["name"]) for one in found] == [
        (workload, name) for workload in ("linear", "cnn") for name in ("mpifed", "bare loop")
    ]
    for ours, theirs in zip(found[::2], found[1::2], strict=True):
        a, b = ours["detail"]["accuracy"], theirs["detail"]["accuracy"]
        assert min(a, b) > 0.25 and abs(a - b) < 0.2


def test_a_program_that_fails_is_named(bench, tmp_path):
    with pytest.raises(RuntimeError, match="ended with 3: no luck"):
        bench.spent(["sh", "-c", "echo no luck >&2; exit 3"], str(tmp_path))


def test_seconds_are_of_all_processes(bench, tmp_path):
    work = "python3 -c 'sum(range(3_000_000))'"
    wall, cpu, said = bench.spent(["sh", "-c", f"{work} & {work}; wait; echo done"], str(tmp_path))
    assert cpu > 0.02 and wall > 0.02 and said == "done\n"


def test_the_table_has_the_figures(bench, monkeypatch, tmp_path):
    detail = {"workload": "cnn", "clients": 20, "samples_each": 60, "version": "1.2", "wall": 0.5}
    detail |= {"start": 2.0, "accuracy": 0.625}
    line = {"name": "Flower", "value": 0.25, "unit": "CPU s a round", "detail": detail}
    (tmp_path / "lines").write_text(json.dumps(line) + "\n")
    monkeypatch.setattr(bench, "DOCS", tmp_path)
    assert bench.main([str(tmp_path / "lines")]) == 0
    row = "| cnn, 20 clients × 60 samples | Flower | 1.2 | 0.25 | 0.5 | 2.0 | 62.5 % |"
    assert (tmp_path / "peers.md").read_text().splitlines()[-1] == row
    (tmp_path / "lines").write_text("")
    assert bench.main([str(tmp_path / "lines")]) == 2
