"""Runs whose gossip is corrected: methods, ranks, participation, checkpoints, and sentences."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from on_ranks import folder_of, same_after_a_resume, unlike_one_rank
from small_runs import mixes_as_given, rounds_of

from mpifed.errors import InputError
from mpifed.testing import names

TREE = {"topology": "path"}
GRAPH = {"topology": "ring", "weights": "metropolis_hastings"}
NAMES = [name for name in names("corrections") if name != "none"]
OTHERS = ("local", "sa_ssmm", "fedbn")
"""These send nothing, have one client, or running statistics."""
CHOOSERS = ("dpfl", "morph", "fomo", "l2c")
METHODS = [name for name in names("algorithms") if mixes_as_given(name) and name not in OTHERS]
FORGETFUL = ("push_sum", "clique_averaging", "clipped_gossip", "dgd", "monna")
"""These remember nothing, or weights that stay one here."""
every_correction = pytest.mark.parametrize("correction", NAMES)


@pytest.fixture(scope="module", autouse=True)
def label_counts(tmp_path_factory):
    """Label counts of four clients and of seven, for cliques."""
    global counts
    counts = tmp_path_factory.mktemp("labels")
    for n in (4, 7):
        np.savetxt(counts / f"{n}.csv", np.eye(2)[np.arange(n) % 2], delimiter=",")
    counts = folder_of(counts)


def gossip(correction, n=4):
    if correction == "clique_averaging":
        schedule = {"name": "d_cliques", "labels": str(counts / f"{n}.csv"), "size": 2}
        return {"name": "gossip", "schedule": schedule, "correction": correction}
    if correction == "clipped_gossip":
        correction = {"name": correction, "radius": 0.1}
    if correction == "dpfl":
        correction = {"name": correction, "start": 1}
    tree = TREE if correction in ("relay_sum", "d2") else {}  # no eigenvalue below -1/3
    return {"name": "gossip", **GRAPH, **tree, "correction": correction}


def test_labels_of_cliques_are_counted_in_the_data_of_training_clients(tmp_path):
    schedule, keys = {"name": "d_cliques", "size": 2}, {"evaluation": {"unseen_fraction": 0.3}}
    of_data = {"name": "gossip", "schedule": {**schedule, "labels": "data"}}
    rounds = rounds_of("fedavg", of_data, clients=7, **keys)
    train, training = rounds.clients.shards.train, rounds.clients.federation.training
    table = [np.bincount(train.of_client(k).y, minlength=2) for k in training]
    assert len(table) < 7
    np.savetxt(tmp_path / "counts.csv", table, delimiter=",")
    of_file = {"name": "gossip", "schedule": {**schedule, "labels": str(tmp_path / "counts.csv")}}
    again = rounds_of("fedavg", of_file, clients=7, **keys)
    for k in (1, 2, 3):
        assert np.array_equal(rounds.mixing_matrix(k), again.mixing_matrix(k))
    assert rounds.advance(2).digest == again.advance(2).digest


def may_be_absent(correction):
    return correction not in ("relay_sum", "nids", "beer", "motef", *CHOOSERS)


@every_correction
def test_a_checkpoint_has_what_clients_remember(correction):
    keys = {"participation": 0.5} if may_be_absent(correction) else {}
    if correction in ("led", "lt_admm"):
        keys["local"] = {"batch_size": 16}  # without momentum
    method = "fedavg" if correction in CHOOSERS else "fedem"
    rounds = rounds_of(method, gossip(correction), rounds=2, **keys)
    again = rounds.resumed()
    assert again.memory.corrections.any() or correction in FORGETFUL
    assert again.advance().digest == rounds.advance().digest


@pytest.mark.parametrize("name", METHODS)
def test_every_method_that_gossips_goes_with_tracking(name):
    """On a complete graph the trackers change what a round of plain gossip does only by rounding:
    with them clients move by the mean update.
    """
    complete = {"name": "gossip", "topology": "complete", "weights": "uniform"}
    plain, tracked = (
        rounds_of(name, {**complete, "correction": correction}, rounds=3)
        for correction in ("none", "tracking")
    )
    states = zip(vars(plain.state).values(), vars(tracked.state).values(), strict=True)
    for one, other in states:
        if isinstance(one, torch.Tensor) and one.is_floating_point():
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    sent = plain.exchange.ledger.up_floats
    assert tracked.exchange.ledger.up_floats == 2 * sent > 0


REFUSED = [
    ({"compression": "quantise"}, "tracking", "compression.*'quantise'.*none"),
    (
        {"participation": 0.5},
        "relay_sum",
        r"participation.* 0\.5.*'relay_sum'.* 1\.0",
    ),
    (
        {"algorithm": {"name": "fedem", "restarts": 2}},
        "d2",
        r"exchange\.correction.*'d2'.*restarts.* 2",
    ),
    ({"algorithm": "kgt", "local": {}}, "tracking", "exchange.correction.*'tracking'.*'kgt'"),
    (
        {"model": "network_modules:normalised_mlp"},
        "extra",
        "normalised_mlp.*exchange.correction=none.*exchange.asynchrony=wait_free",
    ),
    ({"local": {"optimizer": "adam"}}, "lt_admm", "local.optimizer.*'adam'.*'lt_admm'.*sgd"),
    ({"compression": "quantise"}, "edm", "compression.*'quantise'.*none"),
    ({"participation": 0.5}, "beer", r"participation.* 0\.5.*'beer'.* 1\.0"),
]


@pytest.mark.parametrize(("given", "correction", "words"), REFUSED)
def test_what_does_not_go_with_a_correction_is_said_in_a_sentence(given, correction, words):
    with pytest.raises(InputError, match=words):
        rounds_of("fedavg", gossip(correction), **given)


def of_ranks(correction, **more):
    given = {f"exchange.{key}": value for key, value in gossip(correction, 7).items()}
    given["exchange"] = given.pop("exchange.name")
    part = {"participation": 0.7} if may_be_absent(correction) else {}
    if correction in CHOOSERS:
        part = {"algorithm": "fedavg", "evaluation.validation_fraction": 0.2}
    small = {"clients": 7, "rounds": 4, "data.n_test": 20, "data.dimension": 12}
    every = {"evaluation.every": 2, "checkpoint.every": 2, "local.batch_size": 32}
    return {**small, **every, **given, **part, **more}


@pytest.mark.mpi
@every_correction
def test_it_is_the_same_on_these_ranks_as_on_one(correction, tmp_path):
    assert unlike_one_rank(of_ranks(correction), tmp_path) == []


@pytest.mark.mpi
@pytest.mark.parametrize(
    "correction", ["tracking", "d2", "gasloc", "push_sum", "relay_sum", "dpfl", "morph"]
)
def test_a_resumed_run_is_the_uninterrupted_one_on_other_ranks(correction, tmp_path):
    assert same_after_a_resume(of_ranks(correction), tmp_path)
