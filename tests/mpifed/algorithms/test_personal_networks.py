"""Methods with personal models train networks with running statistics and dropout."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from on_ranks import run
from personal_runs import ran
from test_algorithms import engine_of

from mpifed.federation.clients import Draws
from mpifed.training.evaluation import first_samples, training_of

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


def unseen_of(setup, samples):
    """The clients that take no part in training."""
    return samples.among_hosted(np.flatnonzero(setup.federation.unseen))


@pytest.mark.parametrize("buffers", ["average", "local"])
@pytest.mark.parametrize("name", METHODS)
def test_running_statistics_follow_the_models(name, buffers):
    """They move, stay variances, and are those with which clients are evaluated."""
    local = {"batch_size": 32, "lr": 0.05, "buffers": buffers}
    given = {**NETWORK, "local": local}
    if buffers == "local":
        given = {**given, "evaluation": {}}
    found, engine = ran(name, METHODS[name], rounds=2, **given)
    method, model = engine.setup.algorithm, engine.setup.model
    with torch.no_grad():
        rows = training_of(engine.setup, engine.shards).rows
        own = method.deploy(found, engine.everyone, Draws(0, 2)).parameters[rows]
    places = {place.name: place for place in model.spans()}
    spread, count = (
        own[..., places[f"3.{name}"].begin : places[f"3.{name}"].end]
        for name in ("running_var", "num_batches_tracked")
    )
    assert torch.isfinite(own).all()
    assert (spread > 0).all() and (spread != 1).all() and (count > 0).all()
    if buffers == "average":
        with torch.no_grad():
            clients = unseen_of(engine.setup, engine.shards)
            unseen = method.adapt(found, clients, engine.setup.exchange, Draws(0, 2))
        assert torch.isfinite(unseen.parameters).all()


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


def engine_after_a_round(name, **options):
    engine = engine_of("fedavg", "server", algorithm={"name": name, **options}, **NORMALISED)
    with torch.no_grad():
        engine.prepare()
    engine.advance()
    return engine


@pytest.mark.parametrize("name", ["scaffold", "qffl"])
def test_after_the_same_local_steps_they_are_those_of_fedavg(name):
    """Control variates are zero and weights by risks come after the steps of the first round."""
    plain, engine = engine_after_a_round("fedavg"), engine_after_a_round(name, **OPTIONS[name])
    expected, found = (e.state.algorithm.model for e in (plain, engine))
    n = plain.setup.model.n_buffers
    assert n == 13
    assert torch.allclose(found[..., -n:], expected[..., -n:], atol=1e-5)
    assert not torch.allclose(found[..., :-n], expected[..., :-n], atol=1e-3)


@pytest.mark.parametrize("name", OPTIONS)
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_clients_deploy_their_own_or_the_averaged_ones(name, buffers):
    local = {**NORMALISED["local"], "buffers": buffers}
    how = {**NORMALISED, "local": local, "algorithm": {"name": name, **OPTIONS[name]}}
    engine = engine_of("fedavg", "server", **how)
    with torch.no_grad():
        engine.prepare()
        engine.advance()
        algorithm, state = engine.setup.algorithm, engine.state.algorithm
        found = algorithm.deploy(state, training_of(engine.setup, engine.shards), None).parameters
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
    _, engine = ran(algorithm, rounds=1, clients=6, evaluation={"unseen_fraction": 0.4})
    method, server = engine.setup.algorithm, engine.setup.exchange

    def adapted(clients):
        found = method.adapt(engine.state.algorithm, clients, server, Draws(0, 1))
        return found.parameters.clone()

    few = first_samples(unseen_of(engine.setup, engine.shards), 0.3)
    alone = adapted(few)
    assert not torch.equal(alone, adapted(unseen_of(engine.setup, engine.shards)))
    assert torch.equal(alone, adapted(few))
    none = adapted(first_samples(unseen_of(engine.setup, engine.shards), 0.0))
    assert torch.equal(none, server.mean(engine.state.algorithm.model).expand_as(none))
