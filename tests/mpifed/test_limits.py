"""Limiting cases in which two methods must be the same, through the whole engine."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

import mpifed

SMALL = {"clients": 6, "rounds": 3, "data.n_test": 50, "evaluation.every": 1, "local.momentum": 0.9}


def final(tmp_path, name, **changes):
    """Metrics of a run, and the tensors of its last checkpoint."""
    result = mpifed.run("synthetic-fedem", output=tmp_path / name, **{**SMALL, **changes})
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
