"""Unseen clients with a part of their data."""

from __future__ import annotations

import h5py
import numpy as np
import pytest
import torch
from on_ranks import run, unlike_one_rank
from personal_runs import ran

from mpifed.federation.clients import Draws
from mpifed.mpi.communicator import Alone
from mpifed.training.evaluation import first_samples, unseen_of

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
    run("synthetic-fedem", {**SMALL, "algorithm": algorithm}, tmp_path / "run", Alone())
    with h5py.File(tmp_path / "run" / "clients.h5") as file:
        unseen = file["unseen"][:].astype(bool)
        found, whole = file["test_accuracy_by_share"][:], file["test_accuracy"][:]
    assert found.shape == (8, 3) and np.isnan(found[~unseen]).all()
    assert (found[unseen, 2] == whole[unseen]).all()
    assert ((found[unseen] >= 0) & (found[unseen] <= 1)).all()
    if algorithm == "fedavg":
        assert (found[unseen] == whole[unseen, None]).all()


@pytest.mark.parametrize("algorithm", ["l2gd", "l2sgd", "fomaml", "maml", "reptile"])
def test_methods_with_gradients_of_whole_risks_see_the_share_alone(algorithm):
    _, engine = ran(algorithm, rounds=1, clients=6, evaluation={"unseen_fraction": 0.4})
    method, server = engine.setup.algorithm, engine.setup.exchange

    def adapted(clients):
        found = method.adapt(engine.state.algorithm, clients, server, Draws(0, 1))
        return found.parameters.clone()

    few = first_samples(unseen_of(engine.setup, engine.samples), 0.3)
    alone = adapted(few)
    assert not torch.equal(alone, adapted(unseen_of(engine.setup, engine.samples)))
    assert torch.equal(alone, adapted(few))
    none = adapted(first_samples(unseen_of(engine.setup, engine.samples), 0.0))
    assert torch.equal(none, server.mean(engine.state.algorithm.model).expand_as(none))


@pytest.mark.mpi
def test_growth_is_the_same_on_these_ranks_as_on_one(tmp_path):
    assert unlike_one_rank({**SMALL, "algorithm": "fedavg_ft"}, tmp_path) == []
