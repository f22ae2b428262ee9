"""What is predicted of averaging alone, against runs that do nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import mpifed
import topologies
from mpifed.report.groups import contraction
from mpifed.report.runs import read_run
from mpifed.training.exchanging import MOST_NODES, predict

# Steps too small to be seen, on little data: what is left is averaging.
AVERAGING = {
    "clients": 8,
    "rounds": 24,
    "dtype": "float64",
    "data.n_test": 5,
    "data.dimension": 10,
    "local.lr": 1e-30,
    "local.steps": 1,
    "evaluation.every": 1,
    "checkpoint.every": 1000,
    "exchange": "gossip",
    "algorithm": {"name": "fedem", "component_init": "per_client"},
}


def averaged(tmp_path, **overrides):
    """The summary's prediction, the distances of every round, and the run as a report reads it."""
    result = mpifed.run("synthetic-fedem", output=tmp_path / "run", **{**AVERAGING, **overrides})
    distances = result.metrics["consensus_distance"]
    return result.summary["predicted_contraction"], distances, read_run(tmp_path / "run")


@pytest.mark.parametrize("topology", ["ring", "path"])
def test_a_static_matrix_contracts_as_predicted_and_in_the_end_no_faster(topology, tmp_path):
    overrides = {"exchange.topology": topology, "exchange.weights": "metropolis_hastings"}
    predicted, distances, run = averaged(tmp_path, **overrides)
    graph = topologies.build_graph(topology, 8)
    second = topologies.slem(topologies.mixing_matrix(graph, "metropolis_hastings"))
    assert (predicted["tau"], predicted["standard_error"]) == (1, 0.0)
    gap = pytest.approx(1 - second)
    assert run.graph == {"p": predicted["p"], "spectral_gap": gap, "degree": 2}
    assert predicted["per_round"] == pytest.approx(second**2) == pytest.approx(1 - predicted["p"])
    ratios = distances[1:] / distances[:-1]
    assert (ratios <= predicted["per_round"] * (1 + 1e-9)).all()
    assert ratios[-1] == pytest.approx(predicted["per_round"], rel=0.01)
    assert run.predicted == predicted
    assert ratios.min() <= contraction(run) <= predicted["per_round"]


def test_a_schedule_that_is_exact_after_a_period_is_predicted_to_be(tmp_path):
    predicted, distances, _ = averaged(
        tmp_path, rounds=3, **{"exchange.schedule": "one_peer_exponential"}
    )
    assert (predicted["p"], predicted["tau"], predicted["per_round"]) == (1.0, 3, 0.0)
    assert distances[3] < 1e-25 * distances[0] < 1e-25 * distances[2] * 1e3


@pytest.mark.parametrize(
    "overrides",
    [
        {"participation": 0.5},
        pytest.param({"participation": {"name": "bernoulli", "p": 0.6}}, marks=pytest.mark.slow),
        {"exchange.schedule": {"name": "static", "drop_edges": 0.3, "local_rounds": 2}},
        {"exchange.schedule": {"name": "matcha", "budget": 0.5}},
    ],
)
def test_random_rounds_contract_at_least_as_predicted(overrides, tmp_path):
    predicted, distances, run = averaged(tmp_path, **{"exchange.topology": "ring", **overrides})
    assert 0 < predicted["p"] < 1 and predicted["tau"] in (1, 2)
    assert distances[-1] < 0.1 * distances[0]
    assert contraction(run) <= predicted["per_round"] * 1.02


def test_where_nothing_is_mixed_nothing_is_predicted(tmp_path):
    predicted, distances, _ = averaged(tmp_path, rounds=1, algorithm="local")
    assert predicted is None and np.isnan(distances).all()


def static(family, n, **params):
    graph = topologies.build_graph(family, n, 0, **params)
    return topologies.build_schedule("static", graph=graph, weights="metropolis_hastings")


def test_extremes():
    assert predict(static("complete", 6), None, 10)["per_round"] == pytest.approx(0, abs=1e-20)
    assert predict(static("path", 1), None, 10)["per_round"] == 0
    assert predict(static("path", 2), None, 10)["per_round"] == 0
    with pytest.warns(UserWarning, match="5 components"):
        apart = static("erdos_renyi", 5, p=0, on_disconnected="keep")
    assert predict(apart, None, 10)["per_round"] == 1
    large = topologies.build_schedule("equitopo", MOST_NODES + 1)
    assert predict(large, None, 10) is None


def test_taking_part_at_random_is_the_loss_of_nodes():
    schedule = static("complete", 12)
    draws = np.random.default_rng(0).random((201, 12)) < 0.7
    found = predict(schedule, lambda k: draws[k], 200)
    lost = topologies.consensus_rate(topologies.DropNodes(schedule, 0.3, 5))
    error = np.hypot(found["standard_error"], lost.standard_error)
    assert abs(found["p"] - lost.p) < 4 * error
    assert found["p"] < topologies.consensus_rate(schedule).p
