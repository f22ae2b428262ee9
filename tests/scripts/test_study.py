"""The command of the study of topologies: its sweeps are runs that can begin."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import mpifed
from mpifed.testing import run_command, run_rounds

SCRIPTS = Path(__file__).parents[2] / "scripts" / "studies"
N = 64


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import study_topologies

    return study_topologies


def test_every_correction_has_the_twelve_it_goes_with(study):
    data = {"name": "synthetic", "n_test": 1, "dimension": 1}
    counts = {}
    for correction in ("none", "tracking", "exact_diffusion", "quasi_global", "relay_sum"):
        found = study.exchanges(correction)
        counts[correction] = len(found)
        for exchange in found:
            rounds = run_rounds("fedavg", data, rounds=0, clients=N, exchange=exchange)
            assert len(rounds.state.model) == N
    assert counts == {
        "none": 12,
        "tracking": 12,
        "exact_diffusion": 9,
        "quasi_global": 12,
        "relay_sum": 2,
    }


@pytest.mark.slow
def test_its_sweeps_are_planned(study, tmp_path, capsys):
    (*_, last) = study.sweeps(str(tmp_path), ["rounds=3", "seed=[0,1]"])
    assert run_command(["sweep", *last[:-2], "--output", tmp_path / "out", "--dry-run"]) == 0
    runs = capsys.readouterr().out.splitlines()
    assert len(runs) == 2 * 3 * 2
    assert all(" rounds=3 " in line for line in runs)


GRAPH = {"name": "gossip", "topology": "ring", "weights": "metropolis_hastings"}
TINY = {
    **{"clients": 4, "rounds": 2, "data.n_test": 20, "data.dimension": 10, "evaluation.every": 1},
    **{"network": {"latency": 0.001, "bandwidth": 1e9}, "compute.seconds": 0.001},
}


@pytest.fixture
def page(study):
    import study_page

    return study_page


@pytest.fixture
def runs(study, tmp_path):
    """Plain gossip on a ring with all seeds, tracking with two of them, and a run that diverged."""
    for seed in study.COMMON["seed"]:
        for correction in ("none", "tracking")[: 1 if seed == 2 else 2]:
            exchange = GRAPH | {"correction": correction}
            output = tmp_path / "runs" / f"{correction}-{seed}"
            options = TINY | {"data.dirichlet_alpha": 0.1, "seed": seed}
            mpifed.run("synthetic-gossip", output=output, exchange=exchange, **options)
    broken = tmp_path / "runs" / "quasi"
    shutil.copytree(tmp_path / "runs" / "none-0", broken)
    (broken / "DONE").unlink()
    (broken / "summary.json").write_text('{"status": "diverged", "rounds": 2}')
    text = (broken / "config.yaml").read_text()
    (broken / "config.yaml").write_text(
        text.replace("exchange:\n", "exchange:\n  correction: {name: quasi_global}\n")
    )
    return tmp_path / "runs"


def test_its_tables_say_what_the_runs_say(page, runs, tmp_path):
    study = page.read_study(runs, tmp_path / "slow")
    ring, tracked = (0.1, "ring", "none"), (0.1, "ring", "tracking")
    of_seeds = [
        [run.last("test_accuracy") for run in study.fast[key].runs] for key in (ring, tracked)
    ]
    apart = 100 * (np.array(of_seeds[1]) - np.array(of_seeds[0][:2]))
    assert study.differences(tracked, "test_accuracy") * 100 == pytest.approx(apart)
    fast, slow = (part[ring].runs[0].last("simulated_seconds") for part in (study.fast, study.slow))
    assert slow > 2 * 0.05 > fast
    assert "gradient tracking" not in "".join(page.summary(study))  # it lacks a seed
    said = page.counted(study)
    assert re.search(r"\b5 of 423 runs.*\b1 diverged\b.*\b1 .*3 seeds.*\b1 fewer\b", said)
