"""Shipped compressors, aggregators and other parts pass the common checks of their kind."""

from __future__ import annotations

import pytest

from mpifed.testing import (
    check_aggregator,
    check_attack,
    check_compressor,
    check_correction,
    check_dataset,
    check_model,
    check_server_optimizer,
    check_topology,
    names,
)

TREE = {"topology": "star"}
CLIQUES = {"topology": None, "weights": None, "schedule": {"name": "d_cliques", "labels": "data"}}
NEEDS = {
    "relay_sum": ("relay_sum", TREE),
    "clipped_gossip": ({"name": "clipped_gossip", "radius": 1.0}, {}),
    "clique_averaging": ("clique_averaging", CLIQUES),
}
"""What a correction needs beside a ring."""


@pytest.mark.parametrize(
    "compressor",
    [
        *(name for name in names("compressors") if name != "in_order"),
        {"name": "in_order", "parts": [{"name": "top_k", "k": 2}, "natural"]},
        {"name": "rand_k", "k": 3, "indices": "log2"},
        {"name": "top_k", "k": 3, "indices": "log2"},
        {"name": "quantise", "levels": 1, "norm": "l2", "block": 7},
        {"name": "bernoulli", "p": 0.3, "inner": "natural"},
        {"name": "composition", "outer": "natural", "inner": {"name": "top_k", "k": 2}},
    ],
)
def test_compressors(compressor):
    check_compressor(compressor)


@pytest.mark.parametrize("aggregator", names("aggregators"))
def test_aggregators(aggregator):
    # MoNNA trusts one client's own update.
    check_aggregator(aggregator, symmetric=aggregator != "monna")


@pytest.mark.parametrize(
    "attack",
    [*(name for name in names("attacks") if name != "none"), {"name": "alie", "z": "search"}],
)
def test_attacks(attack):
    check_attack(attack)


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam"])
def test_server_optimizers(optimizer):
    check_server_optimizer(optimizer)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["nesterov", "adagrad", "yogi"])
def test_other_server_optimizers(optimizer):
    check_server_optimizer(optimizer)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in names("corrections") if name != "none"])
def test_corrections(name):
    correction, exchange = NEEDS.get(name, (name, {}))
    check_correction(correction, exchange=exchange)


@pytest.mark.parametrize("model", ["linear", {"name": "linear", "bias": False}, "mlp"])
def test_models(model):
    check_model(model)


@pytest.mark.parametrize("model", ["linear", {"name": "mlp", "hidden": [3]}])
def test_models_of_pictures(model):
    check_model(model, data="digits")


SMALL = {"name": "dictionary", "dim": 4, "atoms": 3, "samples": 12}


@pytest.mark.parametrize("dataset", ["digits", "sine", SMALL, "poisson"])
def test_datasets(dataset):
    check_dataset(dataset)


@pytest.mark.parametrize("variant", ["paper", "released", "corrected"])
def test_synthetic_data(variant):
    check_dataset({"name": "synthetic", "variant": variant, "n_test": 10})


@pytest.mark.parametrize("topology", ["ring", "star", "complete", "path", "erdos_renyi", "torus"])
def test_topologies(topology):
    check_topology(topology)
