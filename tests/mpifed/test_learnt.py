"""What a run learnt, in its own shapes: ``learnt`` in clients.h5 and on a ``Result``."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch

import mpifed
from mpifed.checkpoint.files import path_of
from mpifed.components.registry import complete, find
from mpifed.data.base import Description
from mpifed.federation.clients import Draws
from mpifed.models.icnn import dense_icnn
from mpifed.mpi.communicator import Alone
from mpifed.optimal_transport.dataset import Transport
from mpifed.optimal_transport.losses import SCORED, l2_uvp

SMALL = {"clients": 4, "rounds": 2, "evaluation.every": 2, "dtype": "float64"}
BASE = {**SMALL, "compression": "none", "participation": 1.0}
DICTIONARY = {"name": "dictionary", "samples": 80, "dim": 6, "atoms": 4}
SHAPES = {
    "dictionary": (DICTIONARY, {"name": "dictionary", "n_atoms": 3}, {"dictionary": (6, 3)}),
    "gaussian_mixture": (
        {"name": "gaussian_mixture", "n_train": 20},
        {"name": "gaussian_mixture", "components": 2, "learn": "all"},
        {"means": (2, 2), "covariances": (2, 2, 2), "weights": (2,)},
    ),
    "poisson": (
        {"name": "poisson", "n_train": 20},
        {"name": "poisson"},
        {"theta": (), "intensity": ()},
    ),
}


def state_of(result):
    with h5py.File(path_of(result.directory / "checkpoints", 2)) as file:
        return {name: torch.from_numpy(data[()]) for name, data in file["server"].items()}


@pytest.mark.parametrize("method", ["fedmm", "fedmm_theta"])
@pytest.mark.parametrize("name", SHAPES)
def test_theta_comes_in_its_parts(tmp_path, name, method):
    data, surrogate, shapes = SHAPES[name]
    options = {"data": data, "algorithm": {"name": method, "surrogate": surrogate}}
    result = mpifed.run("fedmm-heterogeneous", output=tmp_path / "run", **BASE, **options)
    assert {part: values.shape for part, values in result.learnt.items()} == shapes
    kept = state_of(result)["surrogate"]
    made = assembled(result, surrogate, name)
    theta = kept if method == "fedmm_theta" else made.minimiser(kept)
    for part, values in made.parts(theta).items():
        assert np.array_equal(result.learnt[part], values.numpy())


def assembled(result, surrogate, name):
    """The run's surrogate, made anew."""
    dimension = {"dictionary": 6, "gaussian_mixture": 2, "poisson": 1}[name]
    none = np.zeros(0, np.int64)
    data = Description("test", (dimension,), 0, none, none, none, "unlabelled")
    return find("surrogate", name)(data, **complete("surrogate", surrogate, "surrogate").options)


def test_under_gossip_it_is_the_theta_of_the_mean(tmp_path):
    data, surrogate, _ = SHAPES["dictionary"]
    options = {
        "data": data,
        "exchange": "gossip",
        "algorithm": {"name": "fedmm", "surrogate": surrogate},
    }
    result = mpifed.run("fedmm-heterogeneous", output=tmp_path / "run", **BASE, **options)
    with h5py.File(path_of(result.directory / "checkpoints", 2)) as file:
        rows = torch.from_numpy(file["clients/surrogate"][()])
    expected = assembled(result, surrogate, "dictionary").minimiser(rows.mean(0)).view(6, 3)
    assert result.learnt["dictionary"] == pytest.approx(expected.numpy(), abs=1e-12)


def test_a_factorisation_has_its_dictionary(tmp_path):
    options = {"data": DICTIONARY, "algorithm": {"name": "fedmgs", "n_atoms": 3}}
    result = mpifed.run("fedmm-heterogeneous", output=tmp_path / "run", **BASE, **options)
    assert np.array_equal(result.learnt["dictionary"], state_of(result)["atoms"].numpy())
    assert result.learnt["dictionary"].shape == (6, 3)


@pytest.mark.parametrize("method", ["fedmm_ot", "fedadam"])
def test_a_transport_map_can_be_applied(tmp_path, method):
    data = {"benchmark": "gaussian", "dimension": 2, "samples": 40}
    options = {
        "data": {"name": "transport", **data},
        "model": {"name": "icnn", "hidden": [8, 8]},
        "algorithm": {"name": method, "pretraining": 300},
        "local": {"batch_size": 32, **({"lr": 0.01} if method == "fedmm_ot" else {})},
    }
    experiment = "transport-fedmm-ot" if method == "fedmm_ot" else "transport-fedadam"
    result = mpifed.run(experiment, output=tmp_path / "run", **SMALL, **options)
    network = dense_icnn(2, hidden=[8, 8])
    benchmark = Transport(4, 0, Alone(), **{**data, "samples": 2}).benchmark
    x = benchmark.sample_source(Draws(0, 0).stream("score"), SCORED, torch.float64)
    mapped = network.push(torch.from_numpy(result.learnt["potential"]), x)
    assert result.metrics["l2_uvp"][-1] == pytest.approx(l2_uvp(mapped, benchmark, x), rel=1e-12)
    assert result.learnt["conjugate"].shape == (network.n_parameters,)


def test_results_of_clients_stay_as_they_are(tmp_path):
    few = {"clients": 4, "rounds": 1, "data.n_test": 20}
    result = mpifed.run("synthetic-fedem", output=tmp_path / "run", **few)
    assert result.learnt == {}
    assert {len(values) for values in result.clients.values()} == {4}
