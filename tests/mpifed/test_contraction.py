"""What is predicted of averaging alone, against runs that do nothing else."""

from __future__ import annotations

import numpy as np
import pytest

import mpifed
import topologies

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
    """The summary's prediction, and the distances of every round."""
    result = mpifed.run("synthetic-fedem", output=tmp_path / "run", **{**AVERAGING, **overrides})
    return result.summary["predicted_contraction"], result.metrics["consensus_distance"]


def measured(distances):
    """The factor of a round from the first distance to the least."""
    last = int(np.argmin(distances))
    return (distances[last] / distances[0]) ** (1 / last)


@pytest.mark.parametrize("topology", ["ring", "path"])
def test_a_static_matrix_contracts_as_predicted_and_in_the_end_no_faster(topology, tmp_path):
    overrides = {"exchange.topology": topology, "exchange.weights": "metropolis_hastings"}
    predicted, distances = averaged(tmp_path, **overrides)
    graph = topologies.build_graph(topology, 8)
    second = topologies.slem(topologies.mixing_matrix(graph, "metropolis_hastings"))
    assert (predicted["tau"], predicted["standard_error"]) == (1, 0.0)
    assert predicted["per_round"] == pytest.approx(second**2) == pytest.approx(1 - predicted["p"])
    ratios = distances[1:] / distances[:-1]
    assert (ratios <= predicted["per_round"] * (1 + 1e-9)).all()
    assert ratios[-1] == pytest.approx(predicted["per_round"], rel=0.01)
    assert ratios.min() <= measured(distances) <= predicted["per_round"]


def test_a_schedule_that_is_exact_after_a_period_is_predicted_to_be(tmp_path):
    predicted, distances = averaged(
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
        pytest.param(
            {"exchange.schedule": {"name": "matcha", "budget": 0.5}}, marks=pytest.mark.slow
        ),
    ],
)
def test_random_rounds_contract_at_least_as_predicted(overrides, tmp_path):
    predicted, distances = averaged(tmp_path, **{"exchange.topology": "ring", **overrides})
    assert 0 < predicted["p"] < 1 and predicted["tau"] in (1, 2)
    assert distances[-1] < 0.1 * distances[0]
    assert measured(distances) <= predicted["per_round"] * 1.02


def test_where_nothing_is_mixed_nothing_is_predicted(tmp_path):
    predicted, distances = averaged(tmp_path, rounds=1, algorithm="local")
    assert predicted is None and np.isnan(distances).all()


def predicted_of(tmp_path, n, topology, **overrides):
    options = {"clients": n, "rounds": 1, "evaluation.every": 1000, **overrides}
    options |= {"exchange.topology": topology, "exchange.weights": "metropolis_hastings"}
    return averaged(tmp_path / str(topology), **options)[0]


def test_extremes(tmp_path):
    assert predicted_of(tmp_path, 6, "complete")["per_round"] == pytest.approx(0, abs=1e-20)
    assert predicted_of(tmp_path / "one", 1, "path")["per_round"] == 0
    assert predicted_of(tmp_path / "two", 2, "path")["per_round"] == 0
    apart = {"name": "erdos_renyi", "p": 0, "on_disconnected": "keep"}
    assert predicted_of(tmp_path, 5, apart)["per_round"] == 1


@pytest.mark.slow
def test_taking_part_at_random_is_the_loss_of_nodes(tmp_path):
    graph = topologies.build_graph("complete", 12)
    schedule = topologies.build_schedule("static", graph=graph, weights="metropolis_hastings")
    who = {"participation": {"name": "bernoulli", "p": 0.7}, "rounds": 200}
    found = predicted_of(tmp_path, 12, "complete", **who)
    lost = topologies.consensus_rate(topologies.DropNodes(schedule, 0.3, 5))
    error = np.hypot(found["standard_error"], lost.standard_error)
    assert abs(found["p"] - lost.p) < 4 * error
    assert found["p"] < topologies.consensus_rate(schedule).p
