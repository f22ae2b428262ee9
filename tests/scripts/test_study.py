"""The command of the study of topologies: its sweeps are runs that can begin."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mpifed.config.experiment_files import split_words
from mpifed.exchange.gossip import Gossip
from mpifed.exchange.mixing import complete
from mpifed.federation.clients import Federation
from mpifed.mpi.communicator import Alone
from mpifed.sweep.plan import plan

SCRIPTS = Path(__file__).parents[2] / "scripts"
N = 64


@pytest.fixture
def study(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import study_topologies

    return study_topologies


def test_every_correction_has_the_twelve_it_goes_with(study):
    nodes = np.arange(N)
    federation = Federation(Alone(), 0 * nodes, nodes < 0, np.ones(N, np.int64))
    counts = {}
    for correction in ("none", "tracking", "exact_diffusion", "quasi_global", "relay_sum"):
        found = study.exchanges(correction)
        counts[correction] = len(found)
        for given in found:
            known = {"topology": None, "weights": None, "schedule": "static", "transport": "auto"}
            options = complete({**known, "consensus_step": None, **given}, N)
            options.pop("name", None)
            stored = Gossip.prepare(Alone(), N, 0, options)
            assert Gossip(federation, 0, stored, **options).schedule.n == N
    assert counts == {
        "none": 12,
        "tracking": 12,
        "exact_diffusion": 9,
        "quasi_global": 12,
        "relay_sum": 2,
    }


@pytest.mark.slow
def test_its_sweeps_are_planned(study, tmp_path):
    (*_, last) = study.sweeps(str(tmp_path), ["rounds=3", "seed=[0,1]"])
    experiment, overrides = split_words(last[:-2])
    runs = plan(experiment, overrides, tmp_path, 1)
    assert len(runs) == 2 * 3 * 2 * 2
    assert all(run.overrides["rounds"] == 3 for run in runs)


def test_it_prints_what_it_would_run(study, capsys):
    assert study.main(["--print", "rounds=10"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 5
    assert all(line.startswith("python -m mpifed.sweep synthetic-gossip") for line in lines)
    assert all("rounds=10" in line and "rounds=600" not in line for line in lines)
