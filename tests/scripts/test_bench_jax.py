"""mpifed beside a program in JAX: that both do the same work."""

import sys
from pathlib import Path

import numpy as np
import pytest


@pytest.fixture(autouse=True)
def benchmarks(monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "scripts" / "benchmarks"))


@pytest.mark.slow
@pytest.mark.parametrize("way", ["vmap", "map"])
@pytest.mark.parametrize(
    ("model", "components"),
    [("7-1", 1), ("7-1", 3), ("7-3", 1), ("7-5-4-3", 1), ("7-5-3", 3), ("cnn", 1)],
)
def test_full_batches_lead_to_the_models_of_the_program_in_jax(model, components, way, tmp_path):
    import bench_jax
    import bench_peers

    python = bench_peers.interpreter("JAX")
    if not python.exists():
        pytest.skip(f"{python} is missing, the environment that scripts/bench jax makes")
    work = bench_jax.Work(model, clients=3, samples=6, batch=6)
    rounds, path = bench_jax.rounds_of(work, components, *work.draw()), tmp_path / "work.npz"
    before = bench_jax.parameters_of(rounds).copy()
    bench_jax.write(work, rounds, path)
    program = bench_jax.begun(work, way, path, python)
    assert bench_jax.seconds_of(program, 3) > 0
    expected = bench_jax.ended(program, way, path)
    trained = bench_jax.parameters_of(rounds.advance(3))
    assert np.abs(trained - before).max() > 1e-3
    np.testing.assert_allclose(trained, expected, rtol=0, atol=3e-7)


def test_either_table_of_the_page_can_be_written_anew(tmp_path, monkeypatch):
    import bench_peers

    monkeypatch.setattr(bench_peers, "DOCS", tmp_path)
    page, lines = tmp_path / "peers.md", tmp_path / "lines"
    page.write_text("old simulators\n\n## old program\n\n## What limits rounds\n\nMemory.\n")
    jax = '"work": "one", "vmap": 2, "map": 1, "mpifed": 1, "of_vmap": 0.5, "of_map": 1.25'
    lines.write_text(f'{{"name": "jax", "value": 0.5, "unit": "times", "detail": {{{jax}}}}}\n')
    assert bench_peers.main([str(lines)]) == 0
    assert page.read_text().startswith("old simulators\n\n## ")
    assert "0.50 | 1.25" in page.read_text() and "old program" not in page.read_text()
    peer = '"workload": "linear", "version": "1", "wall": 1, "start": 1, "accuracy": 0.625'
    counts = '"clients": 2, "samples_each": 3'
    lines.write_text(
        f'{{"name": "a", "value": 0.5, "unit": "s", "detail": {{{peer}, {counts}}}}}\n'
    )
    assert bench_peers.main([str(lines)]) == 0
    assert "62.5 %" in page.read_text() and "0.50 | 1.25" in page.read_text()
    assert page.read_text().endswith("\n\n## What limits rounds\n\nMemory.\n")
    lines.write_text("")
    assert bench_peers.main([str(lines)]) == 2


def test_a_peer_that_does_not_install_is_left_out(tmp_path, monkeypatch, capsys):
    import bench_peers

    monkeypatch.setenv("MPIFED_PEERS", str(tmp_path))
    monkeypatch.setenv("MPIFED_PYTHON", "false")
    assert list(bench_peers.environments(["mpifed", "bare loop", "BlazeFL"])) == [
        "mpifed",
        "bare loop",
    ]
    assert "BlazeFL" in capsys.readouterr().err
    assert bench_peers.interpreter("BlazeFL") != Path(sys.executable)
