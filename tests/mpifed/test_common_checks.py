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
    check_surrogate,
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


OUTSIDE = """
import numpy as np
import torch

from mpifed.message import ByCoordinates, Correction
from mpifed.surrogate import Surrogate, client_means


class Midrange(ByCoordinates):
    def combine(self, columns):
        return (columns.min(0) + columns.max(0)) / 2


class Lazy(Correction):
    def width(self, size):
        return 0

    def step(self, x, moved, memory, neighbours):
        return (moved + neighbours.mix(moved)) / 2, memory


class Mean(Surrogate):
    size = n_parameters = 1

    def init(self, generator):
        return generator.standard_normal(1)

    def statistics(self, z, theta, offsets):
        return client_means(lambda samples, theta: samples.mean(0), z, theta, offsets)

    def minimiser(self, s):
        return s

    def project(self, s):
        return s

    def losses(self, z, theta):
        return (z[:, 0] - theta) ** 2 / 2

    def penalty(self, theta):
        return 0.0

    def surrogate_of(self, theta):
        return theta


def mean(data):
    return Mean()
"""


def test_parts_of_a_file_outside_the_repository(tmp_path, monkeypatch):
    (tmp_path / "outside_parts.py").write_text(OUTSIDE)
    monkeypatch.syspath_prepend(tmp_path)
    check_aggregator("outside_parts:Midrange")
    check_correction("outside_parts:Lazy")
    check_surrogate(
        "outside_parts:mean",
        [[1.0], [2.0], [4.0], [9.0]],
        psi=lambda theta: theta[0] ** 2 / 2,
        phi=lambda theta: theta,
    )
