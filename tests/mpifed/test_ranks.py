"""The same numbers on any number of ranks, bit for bit."""

from __future__ import annotations

import pytest
from commands import launch, rows
from on_ranks import SMALL, same_after_a_resume, unlike_one_rank

CASES = {
    "server": {},
    "gossip": {"exchange": "gossip"},
    "ring": {"exchange": "gossip", "exchange.topology": "ring", "participation": 0.6},
    "participation": {"participation": 0.4},
    "bernoulli": {"participation": {"name": "bernoulli", "p": 0.3}},
    "published averaging": {"participation": 0.5, "exchange.average_over": "all"},
    "unseen": {"evaluation.unseen_fraction": 0.3},
    "unseen gossip": {"evaluation.unseen_fraction": 0.3, "exchange": "gossip"},
    "held out": {"evaluation.validation_fraction": 0.3, "participation": 0.6},
    "held out gossip": {
        "evaluation.validation_fraction": 0.2,
        "evaluation.unseen_fraction": 0.3,
        "exchange": "gossip",
    },
    "double": {"dtype": "float64"},
    "double gossip": {"dtype": "float64", "exchange": "gossip"},
    "perceptron": {"model": "mlp", "model.hidden": [9], "local.epochs": 2},
    "fine-tuning": {"algorithm": "fedavg_ft"},
    "local": {"algorithm": "local"},
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
    "collective": {"exchange": "gossip", "exchange.transport": "collective"},
    "neighbourhood": {"exchange": "gossip", "exchange.transport": "neighbourhood"},
    "messages": {"exchange": "gossip", "exchange.transport": "messages"},
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
    assert "2 of 7 ranks have no client" in (tmp_path / "7" / "log.txt").read_text()
