"""Seconds of other simulators, and the table of them."""

import json
from pathlib import Path

import pytest


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts"))
    import bench_peers

    return bench_peers


def test_seconds_are_of_all_processes(bench, tmp_path):
    work = "python3 -c 'sum(range(3_000_000))'"
    wall, cpu, said = bench.spent(["sh", "-c", f"{work} & {work}; wait; echo done"], str(tmp_path))
    assert cpu > 0.02 and wall > 0.02 and said == "done\n"
    with pytest.raises(RuntimeError, match="ended with 3: no luck"):
        bench.spent(["sh", "-c", "echo no luck >&2; exit 3"], str(tmp_path))


def test_the_table_has_the_figures(bench, monkeypatch, tmp_path):
    detail = {"workload": "cnn", "clients": 20, "samples_each": 60, "version": "1.2", "wall": 0.5}
    detail |= {"start": 2.0, "accuracy": 0.625}
    line = {"name": "Flower", "value": 0.25, "unit": "CPU s a round", "detail": detail}
    (tmp_path / "lines").write_text(json.dumps(line) + "\n")
    monkeypatch.setattr(bench, "DOCS", tmp_path)
    assert bench.main([str(tmp_path / "lines")]) == 0
    row = "| cnn, 20 clients × 60 samples | Flower | 1.2 | 0.25 | 0.5 | 2.0 | 62.5 % |"
    assert (tmp_path / "peers.md").read_text().splitlines()[-1] == row
