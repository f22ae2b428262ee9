"""The same numbers on any number of ranks, bit for bit."""

from __future__ import annotations

import pytest
from commands import launch, rows
from on_ranks import SMALL, same_after_a_resume, unlike_one_rank

CASES = {
    "server": {},
    "ring": {"exchange": "gossip", "exchange.topology": "ring", "participation": 0.6},
    "bernoulli": {"participation": {"name": "bernoulli", "p": 0.3}},
    "published averaging": {"participation": 0.5, "exchange.average_over": "all"},
    "held out": {"evaluation.validation_fraction": 0.3, "participation": 0.6},
    "held out gossip": {
        "evaluation.validation_fraction": 0.2,
        "evaluation.unseen_fraction": 0.3,
        "exchange": "gossip",
    },
    "double": {"dtype": "float64"},
    "double gossip": {"dtype": "float64", "exchange": "gossip"},
    "perceptron": {"model": "mlp", "model.hidden": [9], "local.epochs": 2},
    "per client": {
        "exchange": "gossip",
        "algorithm.component_init": "per_client",
        "algorithm.mixture_init": "random",
        "algorithm.gossip_step_scale": "paper",
    },
    "own clock": {
        "local.lr_clock": "local_epoch",
        "local.lr_schedule": "sqrt",
        "local.sampling": "uniform",
        "local.steps": 5,
        "participation": 0.6,
    },
    "fewer clients than ranks": {"clients": 2},
    "star": {"exchange": "gossip", "exchange.topology": "star", "clients": 36},
    "gossip": {"exchange": "gossip"},
    "partitioned": {"exchange": "gossip", "exchange.topology": "path", "placement": "partitioned"},
    "one peer": {"exchange": "gossip", "exchange.schedule": "one_peer_exponential"},
    "matcha": {"exchange": "gossip", "exchange.schedule": {"name": "matcha", "budget": 0.4}},
    "resampled": {
        "exchange": "gossip",
        "exchange.schedule": "resampled",
        "exchange.weights": "metropolis_hastings",
    },
    "drop-outs": {
        "exchange": "gossip",
        "exchange.schedule": {"name": "static", "drop_edges": 0.3, "drop_nodes": 0.2},
        "participation": 0.7,
    },
    "compressed": {"exchange": "gossip", "compression": "quantise"},
    "compressed, as the paper": {
        "exchange": "gossip",
        "exchange.consensus_step": "paper",
        "compression": {"name": "rand_k", "k": 7},
    },
}


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_a_run_is_the_same_on_these_ranks_as_on_one(case, tmp_path):
    assert unlike_one_rank({**SMALL, **CASES[case]}, tmp_path) == []


@pytest.mark.mpi
@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_a_run_resumed_on_these_ranks_is_the_uninterrupted_one(exchange, tmp_path):
    validation = {"evaluation.validation_fraction": 0.2}
    overrides = {**SMALL, **validation, "participation": 0.6, "exchange": exchange}
    assert same_after_a_resume(overrides, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("exchange", ["server", "gossip"])
def test_seven_ranks_for_five_clients_and_one_rank_agree(exchange, tmp_path):
    words = [f"{key}={value}" for key, value in SMALL.items() if key != "clients"]
    words += ["clients=5", f"exchange={exchange}", "--quiet", "--output"]
    for ranks in (0, 7):
        done = launch(ranks, "synthetic-fedem", *words, tmp_path / str(ranks), seconds=120)
        assert done.code == 0, done.err
    assert rows(tmp_path / "0") == rows(tmp_path / "7")
    assert "2 of 7 ranks" in (tmp_path / "7" / "log.txt").read_text()


# Networks have the same numbers on any number of ranks and after any resume.


SMALL_NETWORK = {
    "clients": 5,
    "checkpoint.every": 2,
    "rounds": 4,
    "local.batch_size": 16,
    "local.momentum": 0.0,
}
NETWORKS = {
    "cnn": {"model.name": "network_modules:cnn"},
    "stacked": {"model.name": "network_modules:cnn", "local.stepping": "stacked"},
    "batch normalisation": {"model.name": "network_modules:cnn", "model.norm": True},
    "local buffers": {
        "model.name": "network_modules:cnn",
        "model.norm": True,
        "local.buffers": "local",
        "participation": 0.6,
    },
    "dropout by gossip": {
        "model.name": "network_modules:cnn",
        "model.dropout": 0.3,
        "exchange": "gossip",
    },
    "lstm, adam": {
        "model.name": "network_modules:lstm",
        "local.optimizer": "adam",
        "local.lr": 0.01,
        "participation": 0.6,
    },
}


@pytest.mark.mpi
@pytest.mark.parametrize("case", NETWORKS)
def test_files_do_not_depend_on_the_number_of_ranks(case, tmp_path):
    assert unlike_one_rank({**SMALL_NETWORK, **NETWORKS[case]}, tmp_path, "digits-fedem") == []


@pytest.mark.mpi
@pytest.mark.parametrize("case", ["batch normalisation", "local buffers", "lstm, adam"])
def test_a_resumed_run_is_the_uninterrupted_one(case, tmp_path):
    assert same_after_a_resume(
        {**SMALL_NETWORK, **NETWORKS[case]}, tmp_path, "digits-fedem", rounds=4
    )


# FLIX, its compressed forms and the meta-learners: the same on any ranks, and after a resume.


CONVEX = {"dtype": "float64", "algorithm.l2": 0.1, "algorithm.local_iterations": 60}
RAND_K = {"compression": {"name": "rand_k", "k": 7}}
SOME = {"participation": 0.6}
FLIX_CASES = {
    "held out": {"algorithm": "flix", **CONVEX, "evaluation.validation_fraction": 0.3},
    "single precision": {"algorithm": "flix", "algorithm.l2": 0.1, "algorithm.step": 0.5},
    "dcgd of some": {
        "algorithm": "dcgd",
        **CONVEX,
        **SOME,
        "compression": {"name": "bernoulli", "inner": "natural"},
    },
    "diana of some": {
        "algorithm": "diana",
        **CONVEX,
        "participation": {"name": "bernoulli", "p": 0.5},
        "compression": "quantise",
        "algorithm.memory_start": "gradients",
    },
    "stochastic": {"algorithm": "flix", **CONVEX, "algorithm.gradient": "stochastic"},
    "network": {
        "algorithm": "flix",
        "model": {"name": "mlp", "hidden": [5], "activation": "tanh", "initial": "normal"},
        "algorithm.step": "line_search",
        "algorithm.stop_at": 1e-3,
        "algorithm.local_iterations": 20,
    },
    "network by SGD": {
        "algorithm": "flix",
        "model": {"name": "mlp", "hidden": [5], "activation": "tanh", "initial": "normal"},
        "algorithm.step": "line_search",
        "algorithm.stop_at": 1e-1,
        "algorithm.stop_rule": "published_code",
        "algorithm.local_solver": "published_code",
        "algorithm.local_iterations": 30,
        "evaluation.validation_fraction": 0.2,
    },
    "purely local": {"algorithm": "diana", **CONVEX, **RAND_K, "algorithm.flix_alpha": 0},
    "unregularised": {"algorithm": "flix", **CONVEX, "algorithm.l2": 0.0},
    "lbfgs": {"algorithm": "flix", **CONVEX, "algorithm.local_solver": "lbfgs"},
    "maml": {"algorithm": "maml", "model": {"name": "mlp", "hidden": [5], "activation": "tanh"}},
    "linear maml": {"algorithm": "maml", "dtype": "float64", "evaluation.unseen_fraction": 0.3},
}
RESUMED = ("diana of some", "network")


@pytest.mark.mpi
@pytest.mark.parametrize("case", FLIX_CASES)
def test_flix_is_the_same_on_these_ranks_as_on_one(case, tmp_path):
    assert unlike_one_rank({**SMALL, **FLIX_CASES[case]}, tmp_path) == []


@pytest.mark.mpi
@pytest.mark.parametrize("case", RESUMED)
def test_a_run_of_flix_resumed_on_these_ranks_is_the_uninterrupted_one(case, tmp_path):
    assert same_after_a_resume({**SMALL, **FLIX_CASES[case]}, tmp_path)
