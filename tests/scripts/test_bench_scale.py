"""A smoke run of the benchmarks of many clients."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts" / "benchmarks"


@pytest.mark.parametrize(
    "name", ["many_clients", "sampled_clients", "memory_a_client", "million_clients"]
)
def test_a_benchmark_prints_its_figure(name, monkeypatch, capsys):
    monkeypatch.syspath_prepend(SCRIPTS)
    import bench_scale

    monkeypatch.setattr(
        bench_scale,
        "measured",
        lambda *words, ranks=1: {
            "cpu_seconds": 1.0,
            "wall_seconds": 2.0,
            "peak_bytes": 1000.0 * sum(word == "clients=1100000" for word in words),
            "state_digest": "",
        },
    )
    bench_scale.BENCHMARKS[name]()
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["name"] == name
    assert found["value"] == {"memory_a_client": 0.0}.get(name, 1.0)


@pytest.mark.slow
def test_a_run_is_measured(monkeypatch, capsys):
    monkeypatch.syspath_prepend(SCRIPTS)
    import bench_scale

    bench_scale.many_clients(clients=50, repeats=1)
    bench_scale.million_clients(clients=1000)
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["name"] for line in lines] == ["many_clients", "million_clients"]
    assert all(line["detail"]["peak_bytes"] > 1e6 for line in lines)
    assert sys.modules["bench_scale"] is bench_scale
