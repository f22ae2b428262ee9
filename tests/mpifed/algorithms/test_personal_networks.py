"""Methods with personal models train networks with running statistics and dropout."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from on_ranks import run
from personal_runs import ran

from mpifed.dataset import Shards, Split
from mpifed.method import Clients, Draws
from mpifed.testing import run_rounds

NETWORK = {
    "data": "digits",
    "model": {"name": "network_modules:cnn", "norm": True, "dropout": 0.2},
    "evaluation": {"unseen_fraction": 0.3},
}
METHODS = {
    "ditto": {},
    "apfl": {"apfl_adaptive": True},
    "pfedme": {"pfedme_lambda": 1.0, "inner_steps": 2, "beta": 1.5},
    "l2gd": {"l2gd_gradients": "minibatch", "l2gd_p": 0.3},
}


def adapted(rounds, share=1.0):
    """What clients that take no part predict with, given the first of their samples."""
    everyone, draws = rounds.clients, Draws(0, rounds.round)
    train = everyone.shards.train
    counts = np.floor(share * train.counts).astype(int)
    first = np.concatenate(
        [np.arange(begin, begin + n) for begin, n in zip(train.offsets, counts, strict=False)]
    )
    part = Split(train.x[first], train.y[first], np.concatenate([[0], np.cumsum(counts)]))
    shards = Shards(everyone.shards.client_ids, part, everyone.shards.val, everyone.shards.test)
    unseen = Clients(everyone.federation, shards, np.flatnonzero(everyone.federation.unseen))
    predictor = rounds.algorithm.adapt(rounds.state, unseen, rounds.exchange, draws)
    return predictor.parameters.clone()


@pytest.mark.parametrize("buffers", ["average", "local"])
@pytest.mark.parametrize("name", METHODS)
def test_running_statistics_follow_the_models(name, buffers):
    """They move, stay variances, and are those with which clients are evaluated."""
    local = {"batch_size": 32, "lr": 0.05, "buffers": buffers}
    given = {**NETWORK, "local": local}
    if buffers == "local":
        given = {**given, "evaluation": {}}
    rounds = ran(name, METHODS[name], rounds=2, **given)
    own = torch.from_numpy(rounds.deployed.parameters)
    places = {place.name: place for place in rounds.model.spans()}
    spread, count = (
        own[..., places[f"3.{name}"].begin : places[f"3.{name}"].end]
        for name in ("running_var", "num_batches_tracked")
    )
    assert torch.isfinite(own).all()
    assert (spread > 0).all() and (spread != 1).all() and (count > 0).all()
    if buffers == "average":
        with torch.no_grad():
            assert torch.isfinite(adapted(rounds)).all()


# Running statistics are averaged as in FedAvg, whatever a server does with parameters.


OPTIONS = {
    "fedprox": {"mu": 5.0},
    "scaffold": {"server_lr": 3.0},
    "qffl": {"q": 2.0},
}
NORMALISED = {
    "data": {"name": "digits"},
    "model": {"name": "network_modules:cnn", "norm": True},
    "local": {"batch_size": 16},
}


def after_a_round(name, local=NORMALISED["local"], **options):
    keys = {**NORMALISED, "local": local}
    return run_rounds({"name": name, **options}, clients=4, **keys)


@pytest.mark.parametrize("name", ["scaffold", "qffl"])
def test_after_the_same_local_steps_they_are_those_of_fedavg(name):
    """Control variates are zero and weights by risks come after the steps of the first round."""
    plain, rounds = after_a_round("fedavg"), after_a_round(name, **OPTIONS[name])
    expected, found = plain.state.model, rounds.state.model
    n = plain.model.n_buffers
    assert n == 13
    assert torch.allclose(found[..., -n:], expected[..., -n:], atol=1e-5)
    assert not torch.allclose(found[..., :-n], expected[..., :-n], atol=1e-3)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_clients_deploy_their_own_or_the_averaged_ones(name, buffers):
    local = {**NORMALISED["local"], "buffers": buffers}
    rounds = after_a_round(name, local, **OPTIONS[name])
    with torch.no_grad():
        found = rounds.algorithm.deploy(rounds.state, rounds.clients, None).parameters
    assert found.dim() == (2 if buffers == "average" else 3)
    assert torch.isfinite(found).all()


# Unseen clients with a part of their data.


SMALL = {
    "clients": 8,
    "rounds": 4,
    "data.n_test": 30,
    "data.dimension": 6,
    "evaluation.every": 2,
    "checkpoint.every": 2,
    "evaluation.unseen_fraction": 0.4,
    "evaluation.unseen_shares": [0.0, 0.3, 1.0],
}


@pytest.mark.parametrize("algorithm", ["fedem", "fedavg", "fedavg_ft", "fedrod_hyper"])
def test_all_of_the_data_is_what_the_client_has_and_none_needs_no_data(algorithm, tmp_path):
    run("synthetic-fedem", {**SMALL, "algorithm": algorithm}, tmp_path / "run")
    with h5py.File(tmp_path / "run" / "clients.h5") as file:
        unseen = file["unseen"][:].astype(bool)
        found, whole = file["test_accuracy_by_share"][:], file["test_accuracy"][:]
    assert found.shape == (8, 3) and np.isnan(found[~unseen]).all()
    assert (found[unseen, 2] == whole[unseen]).all()
    assert ((found[unseen] >= 0) & (found[unseen] <= 1)).all()
    if algorithm == "fedavg":
        assert (found[unseen] == whole[unseen, None]).all()


def test_shares_of_tags_have_the_recall_that_tags_are_measured_by(tmp_path):
    evaluation = {"evaluation.unseen_fraction": 0.4, "evaluation.unseen_shares": [0.5, 1.0]}
    words = {"clients": 5, "rounds": 1, "algorithm": "fedem", **evaluation}
    run("flix-tags", words, tmp_path / "run")
    with h5py.File(tmp_path / "run" / "clients.h5") as file:
        unseen, recall = file["unseen"][:].astype(bool), file["test_recall_at_5"][:]
        found = file["test_accuracy_by_share"][:]
    assert np.array_equal(found[unseen, 1], recall[unseen]) and np.isfinite(found[unseen]).all()


@pytest.mark.parametrize("algorithm", ["l2gd", "l2sgd", "fomaml", "maml", "reptile"])
def test_methods_with_gradients_of_whole_risks_see_the_share_alone(algorithm):
    rounds = ran(algorithm, rounds=1, clients=6, evaluation={"unseen_fraction": 0.4})
    few = adapted(rounds, 0.3)
    assert not torch.equal(few, adapted(rounds))
    assert torch.equal(few, adapted(rounds, 0.3))
    none = adapted(rounds, 0.0)
    assert torch.equal(none, rounds.state.model.expand_as(none))
