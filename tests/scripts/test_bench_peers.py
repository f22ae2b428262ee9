"""Seconds of other simulators."""

from pathlib import Path

import pytest


@pytest.fixture
def bench(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "benchmarks"))
    import bench_peers

    return bench_peers


def test_seconds_are_of_all_processes(bench, tmp_path):
    work = "python3 -c 'sum(range(3_000_000))'"
    wall, cpu, said = bench.spent(["sh", "-c", f"{work} & {work}; wait; echo done"], str(tmp_path))
    assert cpu > 0.02 and wall > 0.02 and said == "done\n"
    with pytest.raises(RuntimeError, match=r"\b3\b.*no luck"):
        bench.spent(["sh", "-c", "echo no luck >&2; exit 3"], str(tmp_path))
