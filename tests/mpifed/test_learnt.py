"""What a run learnt, in its own shapes: ``learnt`` in clients.h5 and on a ``Result``."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch

import mpifed
from mpifed.algorithms.fedmm.transport import SCORED, l2_uvp
from mpifed.checkpoint.files import path_of
from mpifed.components.registry import checked_section, find
from mpifed.data.base import Description
from mpifed.federation.clients import Draws
from mpifed.models.icnn import dense_icnn
from mpifed.mpi.communicator import Alone
from mpifed.optimal_transport.dataset import Transport

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
    return find("surrogate", name)(
        data, **checked_section("surrogate", surrogate, "surrogate").options
    )


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


# Limiting cases in which two methods must be the same, through the whole engine.


SMALL_LIMITS = {
    "clients": 6,
    "rounds": 3,
    "data.n_test": 50,
    "evaluation.every": 1,
    "local.momentum": 0.9,
}


def final(tmp_path, name, **changes):
    """Metrics of a run, and the tensors of its last checkpoint."""
    result = mpifed.run("synthetic-fedem", output=tmp_path / name, **{**SMALL_LIMITS, **changes})
    (path,) = (result.directory / "checkpoints").glob("round-000003.h5")
    with h5py.File(path) as file:
        stored = {
            f"{group}.{key}": data[()]
            for group in ("server", "clients")
            for key, data in file[group].items()
        }
    return result.metrics, stored


@pytest.mark.parametrize("exchange", [{}, {"exchange": "gossip"}])
def test_fedem_with_one_component_is_fedavg(tmp_path, exchange):
    scale = {"algorithm.gossip_step_scale": "normalised"}
    one, em = final(tmp_path, "em", **{"algorithm.n_components": 1, **scale}, **exchange)
    two, average = final(tmp_path, "avg", algorithm="fedavg", **scale, **exchange)
    place = "clients" if exchange else "server"
    assert np.array_equal(em[f"{place}.components"], average[f"{place}.model"])
    assert np.array_equal(em["clients.optimizer.momentum"], average["clients.optimizer.momentum"])
    for column in ("test_accuracy", "train_accuracy", "up_bits", "down_bits"):
        assert np.array_equal(one[column], two[column])
    assert np.allclose(one["test_loss"], two["test_loss"], rtol=1e-6)


def test_gossip_with_the_identity_is_local_training(tmp_path):
    alone = {
        "exchange": "gossip",
        "exchange.topology": {"name": "erdos_renyi", "p": 0.0, "on_disconnected": "keep"},
        "algorithm.gossip_step_scale": "none",
    }
    one, gossip = final(tmp_path, "gossip", algorithm="fedavg", **alone)
    two, local = final(tmp_path, "local", algorithm="local")
    assert np.array_equal(gossip["clients.model"], local["clients.models"])
    assert np.array_equal(one["test_loss"], two["test_loss"])
    assert one["up_bits"][-1] == 0 and two["up_bits"][-1] == 0


def test_fine_tuning_does_not_touch_training(tmp_path):
    one, plain = final(tmp_path, "plain", algorithm="fedavg")
    two, tuned = final(tmp_path, "tuned", algorithm="fedavg_ft")
    assert all(np.array_equal(plain[name], tuned[name]) for name in plain)
    assert (one["train_loss"] > two["train_loss"]).all()


def test_the_ledger_counts_what_a_federation_would_send(tmp_path):
    bits = 3 * 151 * 32
    metrics, _ = final(tmp_path, "half", participation=0.5)
    assert metrics["up_bits"].tolist() == [0, 3 * bits, 6 * bits, 9 * bits]
    assert metrics["down_bits"].tolist() == metrics["up_bits"].tolist()
    assert metrics["active_clients"][1:].tolist() == [3, 3, 3]
    ring = {
        "exchange": "gossip",
        "exchange.topology": "ring",
        "exchange.weights": "metropolis_hastings",
    }
    metrics, _ = final(tmp_path, "ring", **ring)
    assert metrics["up_bits"].tolist() == [0, 12 * bits, 24 * bits, 36 * bits]
    metrics, _ = final(tmp_path, "double", dtype="float64")
    assert metrics["up_bits"][-1] == 2 * 3 * 6 * bits


def test_unseen_clients_are_served_and_take_no_part(tmp_path):
    metrics, stored = final(tmp_path, "unseen", **{"evaluation.unseen_fraction": 0.34})
    assert {"unseen_train_accuracy", "unseen_test_accuracy"} <= set(metrics)
    assert metrics["active_clients"][1:].tolist() == [4, 4, 4]
    with h5py.File(tmp_path / "unseen" / "clients.h5") as file:
        unseen, mixture = file["unseen"][:], file["mixture"][:]
    assert unseen.sum() == 2 and np.allclose(mixture.sum(1), 1)
    assert (stored["clients.optimizer.epochs"] == np.where(unseen, 0, 3)).all()
    for exchange in ("server", "gossip"):
        more, _ = final(
            tmp_path, exchange, exchange=exchange, **{"evaluation.unseen_fraction": 0.2}
        )
        assert np.isfinite(more["unseen_test_accuracy"]).all()


def test_the_identity_is_no_compression_under_gossip(tmp_path):
    some = {"exchange": "gossip", "participation": 0.5, "rounds": 3}
    plain, _ = final(tmp_path, "plain", **some)
    named, _ = final(tmp_path, "named", compression="identity", **some)
    for column in ("state_digest", "up_bits", "down_bits"):
        assert np.array_equal(plain[column], named[column])


def test_the_identity_takes_the_step_of_choco_where_one_is_asked_for(tmp_path):
    gossip = {"exchange": "gossip", "rounds": 3}
    plain, without = final(tmp_path, "plain", **gossip)
    half = {**gossip, "compression": "identity", "exchange.consensus_step": 0.5}
    stepped, stored = final(tmp_path, "half", **half)
    assert any("replica" in name for name in stored) and not any("replica" in n for n in without)
    assert plain["state_digest"][-1] != stepped["state_digest"][-1]
    assert (stepped["consensus_distance"][1:] > plain["consensus_distance"][1:]).all()
