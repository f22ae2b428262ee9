"""Every part of the benchmark suite runs, and its page is drawn from what it prints."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from mpifed.dataset import Description
from mpifed.testing import world

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "scripts" / "benchmarks"
PARTS = (
    *("local_linear", "local_mlp", "local_cnn", "local_lstm"),
    *("evaluation", "checkpoint_file", "fmmc_graphs"),
)


@pytest.fixture
def suite(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_suite

    return bench_suite


def figures(text):
    return [json.loads(line) for line in text.splitlines()]


def test_the_suite_has_all_parts(suite):
    assert {*suite.PARTS} == {*PARTS, "exchange", "startup"}


@pytest.mark.parametrize("part", PARTS)
def test_a_part_prints_its_seconds(part, suite, capsys):
    suite.PARTS[part](tiny=True)
    (one,) = figures(capsys.readouterr().out)
    assert one["name"].startswith(part.split("_graphs")[0])
    assert one["unit"].startswith("CPU s ")
    assert 0 <= one["value"] < math.inf and 0 < one["detail"]["wall"] < math.inf
    assert len(one["detail"]["all"]) == one["detail"]["repeats"] == 1


@pytest.mark.slow
def test_a_network_is_compared_with_a_bare_loop(monkeypatch, capsys):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_networks

    monkeypatch.setattr(bench_networks, "REPEATS", 1)
    about = {"shape": [28, 28], "samples": 12, "tests": 2}
    description = Description("random", (28, 28), 10, *[np.zeros(1, np.int64)] * 3)
    module = bench_networks.perceptron(description)
    bench_networks.compared("small", module, "mlp", about, 6, clients=2)
    first, second = figures(capsys.readouterr().out)
    assert (first["name"], second["name"]) == ("small", "small_fedem")
    assert first["value"] > 0 and second["detail"]["whole"] > 0


@pytest.mark.mpi
@pytest.mark.parametrize("what", ["server", "gossip"])
def test_an_exchange_is_measured_on_these_ranks(what, monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_exchange

    communicator = world()
    if communicator.size < 2:
        return
    found = getattr(bench_exchange, what)(communicator, 5000, 2)
    assert all(len(every) == 2 for every in found.values())
    assert all(wall > 0 and cpu >= 0 for every in found.values() for wall, cpu in every)
    assert {*bench_exchange.medians(found)} == {*found}


def test_an_exchange_is_told_beside_bare_mpi(suite, capsys, monkeypatch):
    ways = ("sum", "own", "float32", "moved", "bare", "round")
    measured = {way: [[place + 1.0, 0.5]] * 3 for place, way in enumerate(ways)}
    monkeypatch.setattr(suite.bench_exchange, "on_ranks", lambda *_: measured)
    suite.exchange(tiny=True)
    found = {one["name"]: one for one in figures(capsys.readouterr().out)}
    assert {*found} == {"server_sum", "gossip_rows"}
    assert found["server_sum"]["value"] == round(1 / 3, 3)
    assert found["server_sum"]["detail"]["beyond_own"] == round(-1 / 3, 3)
    assert found["gossip_rows"]["value"] == 1.2


def line(name, value, **detail):
    return json.dumps({"name": name, "value": value, "unit": "CPU s a round", "detail": detail})


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="a copy without its history")
def test_the_history_has_a_row_and_a_point_for_each_commit(monkeypatch, tmp_path, capsys):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import bench_history

    (tmp_path / "history").mkdir()
    old = {"commit": "0" * 12, "date": "2001-01-01T00:00:00+00:00"}
    old |= {"processor": bench_history.processor(), "seconds": {"a": 2.0}}
    (tmp_path / "history" / "old.json").write_text(json.dumps(old))
    lines = tmp_path / "lines"
    lines.write_text(
        '{"name": "a", "value": 1.5, "unit": "CPU s a round", "detail": {}}\n'
        '{"name": "ratio", "value": 3, "unit": "times", "detail": {}}\nnoise\n'
    )
    assert bench_history.main([str(lines)], tmp_path) == 0
    text = (tmp_path / "benchmarks_history.md").read_text()
    rows = [line.split(" | ")[2] for line in text.splitlines() if line.startswith("| `")]
    assert rows == ["2 |", "1.5 |"] and "ratio" not in text
    assert (tmp_path / "benchmarks_history.png").read_bytes().startswith(b"\x89PNG")
    for words in ([], [str(lines), "no-such-commit"], [str(tmp_path / "none")]):
        assert bench_history.main(words, tmp_path) == 2
    assert len(capsys.readouterr().err.splitlines()) == 3
    assert len(list((tmp_path / "history").iterdir())) == 2
