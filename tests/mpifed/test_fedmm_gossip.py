"""FedMM by gossip on clients with unequal numbers of samples: whose problem it solves."""

from __future__ import annotations

import numpy as np
import pytest
from commands import call
from fedmm_runs import Unequal

import mpifed

BASE = {
    "clients": 5,
    "data": "fedmm_runs:Unequal",
    "dtype": "float64",
    "participation": 1.0,
    "compression": "none",
    "evaluation.every": 400,
    "checkpoint.every": 400,
}
NUMBERS = np.arange(1, 6)
MU = {"uniform": np.full(5, 0.2), "samples": Unequal.SIZES / Unequal.SIZES.sum()}


def learnt(output, weights, method="fedmm", **more):
    algorithm = {
        "name": method,
        "surrogate": "remark_one",
        "step_rule": "constant",
        "step": 0.25,
        "client_weights": weights,
    }
    given = {**BASE, "algorithm": algorithm, "rounds": 400, **more}
    return mpifed.run("fedmm-homogeneous", output=output, quiet=True, **given)


@pytest.mark.parametrize("weights", MU)
@pytest.mark.parametrize("topology", ["ring", pytest.param("complete", marks=pytest.mark.slow)])
def test_gossip_finds_the_minimum_that_the_weights_ask_for(tmp_path, weights, topology):
    exchange = {"name": "gossip", "topology": topology, "weights": "metropolis_hastings"}
    found = learnt(tmp_path / "mixed", weights, exchange=exchange)
    mean = MU[weights] @ NUMBERS
    assert float(found.learnt["theta"]) == pytest.approx(mean**-0.5, rel=1e-12)
    assert found.metrics["objective"][-1] == pytest.approx(2 * mean**0.5, rel=1e-12)
    naive = learnt(tmp_path / "naive", weights, "fedmm_theta", exchange=exchange)
    assert float(naive.learnt["theta"]) == pytest.approx(MU[weights] @ NUMBERS**-0.5, rel=1e-12)


@pytest.mark.parametrize("method", ["fedmm", "fedmm_theta"])
def test_among_neighbours_of_all_each_round_is_the_servers(tmp_path, method):
    """With one step size for statistics of theta too: a mixture, whose S is not linear in theta."""
    complete = {"name": "gossip", "topology": "complete", "weights": "metropolis_hastings"}
    mixture = {"name": "gaussian_mixture", "components": 2}
    runs = [
        learnt(
            tmp_path / exchange["name"],
            "samples",
            method,
            exchange=exchange,
            rounds=6,
            **{"algorithm.surrogate": mixture},
        )
        for exchange in ({"name": "server"}, complete)
    ]
    server, gossip = (run.learnt["means"] for run in runs)
    assert gossip == pytest.approx(server, rel=1e-12)
    assert runs[1].metrics["objective"][-1] == pytest.approx(runs[0].metrics["objective"][-1])


def test_a_step_beyond_a_clients_statistics_is_refused(tmp_path, capfd):
    """7 of 20 samples: n mu_i is 1.75."""
    words = [f"{key}={value}" for key, value in BASE.items()]
    words += ["fedmm-homogeneous", "exchange=gossip", "rounds=2", "--output", tmp_path / "run"]
    algorithm = "name: fedmm, surrogate: remark_one, client_weights: samples"
    refused = call([*words, f"algorithm={{{algorithm}, step_rule: inverse}}"], capfd)
    assert refused.code == 2 and not (tmp_path / "run").exists()
    assert "gamma n mu_i, here up to 1.75 in round 1; allowed: at most 1" in refused.err
    assert "smaller algorithm.step, with step_rule constant or sqrt, or" in refused.err
    allowed = f"algorithm={{{algorithm}, step_rule: constant, step: 0.5}}"
    assert call([*words, allowed], capfd).code == 0
