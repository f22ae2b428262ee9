"""IFCA: which model each client chooses, and what becomes of the models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from convex import Run, clients_of, logistic, quadratics

import mpifed
from mpifed.algorithms.clusters.ifca import Ifca
from mpifed.algorithms.global_model.fedavg import FedAvg
from mpifed.federation.clients import Draws, participants


def groups(centres, **how):
    return quadratics([[[1.0]]] * len(centres), [[float(c)] for c in centres], **how)


def choices(run):
    found = run.method.deploy(run.state, run.clients, Draws(0, run.round))
    return found.results["cluster"].tolist()


@pytest.mark.parametrize("compression", [None, ("rand_k", {"fraction": 0.6})])
def test_with_one_cluster_it_is_fedavg_bit_for_bit(compression):
    settings = {"lr": 0.1, "batch_size": 16, "momentum": 0.9}
    data = logistic(participation=0.5)
    own, average = (
        Run(kind, data, compression, local=settings, **options).go(4)
        for kind, options in ((Ifca, {"n_clusters": 1}), (FedAvg, {}))
    )
    assert torch.equal(own.state.models, average.state.model)
    assert torch.equal(own.state.optimizer.momentum, average.state.optimizer.momentum)


def test_first_models_are_apart_and_the_first_is_that_of_fedavg():
    run = Run(Ifca, groups([1, 2]), n_clusters=3)
    assert len(run.state.models.unique()) == 3
    assert run.state.models[:1].equal(Run(FedAvg, groups([1, 2])).state.model)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("averaging", ["models", "gradients"])
def test_groups_far_apart_are_recovered(averaging, seed):
    centres = [10, -10, 10, 10, -10]
    run = Run(
        Ifca, groups(centres), seed=seed, local={"lr": 0.9}, n_clusters=2, averaging=averaging
    )
    assert run.go(60).deployed()[:, 0] == pytest.approx(centres, rel=1e-6)
    chosen = choices(run)
    assert chosen[0] == chosen[2] == chosen[3] != chosen[1] == chosen[4]


def test_gradients_are_divided_by_the_number_of_all_participants():
    """theta_j - gamma / 5 sum_{i in S_j} (theta_j - c_i), with two and three clients."""
    centres = np.array([10.0, -10, 9, 12, -8])
    run = Run(Ifca, groups(centres), local={"lr": 0.1}, n_clusters=2, averaging="gradients")
    first = run.state.models.numpy().copy()
    after = run.go(1).state.models.numpy()
    for label in range(2):
        own = centres[centres > 0] if label == first.argmax() else centres[centres < 0]
        expected = first[label] - 0.1 / 5 * (first[label] - own).sum()
        assert after[label] == pytest.approx(expected, rel=1e-12)


def test_gradients_are_divided_by_the_number_of_those_who_take_part():
    """With three of five clients in a round: theta_j - gamma / 3 sum over its participants."""
    centres = np.array([10.0, -10, 9, 12, -8])
    data = groups(centres, participation=0.6)
    run = Run(Ifca, data, local={"lr": 0.1}, n_clusters=2, averaging="gradients")
    for round in range(1, 4):
        before = run.state.models[:, 0].numpy().copy()
        federation = run.clients.federation
        here = np.flatnonzero(participants(federation, federation.participation, run.seed, round))
        chosen = np.abs(before[:, None] - centres[here]).argmin(0)
        own = [(before[label] - centres[here][chosen == label]).sum() for label in range(2)]
        run.go(1)
        expected = before - 0.1 / len(here) * np.array(own)
        assert len(here) < 5 and run.state.models[:, 0].numpy() == pytest.approx(
            expected, rel=1e-12
        )


def test_a_model_that_nobody_chooses_stays():
    run = Run(Ifca, groups([10, 10]), local={"lr": 0.1}, n_clusters=2)
    first = run.state.models.clone()
    unchosen = int(first.argmin())
    assert run.go(3).state.models[unchosen].equal(first[unchosen])
    assert not run.state.models[1 - unchosen].equal(first[1 - unchosen])


def test_four_rounds_are_those_of_a_program_in_numpy():
    draw = np.random.default_rng(3)
    sizes = (4, 7, 3, 5, 6, 8)
    xs = [draw.normal(size=(n, 3)) for n in sizes]
    ys = [x @ (draw.normal(size=3) + 3 * (-1) ** i) for i, x in enumerate(xs)]
    run = Run(
        Ifca,
        clients_of(xs, ys, participation=0.5),
        local={"lr": 0.05, "epochs": 2},
        n_clusters=2,
    )
    models = run.state.models.numpy().copy()
    for round in range(1, 5):
        run.go(1)
        sums, masses = np.zeros((2, 3)), np.zeros(2)
        federation = run.clients.federation
        for i in np.flatnonzero(participants(federation, 0.5, run.seed, round)):
            losses = [((xs[i] @ w - ys[i]) ** 2).mean() / 2 for w in models]
            best = int(np.argmin(losses))
            w = models[best].copy()
            for _ in range(2):
                w -= 0.05 * xs[i].T @ (xs[i] @ w - ys[i]) / sizes[i]
            sums[best] += sizes[i] * w
            masses[best] += sizes[i]
        for j in np.flatnonzero(masses):
            models[j] = sums[j] / masses[j]
        assert run.state.models.numpy() == pytest.approx(models, rel=1e-11)
    assert len(set(choices(run))) == 2


def test_a_client_gets_all_models_and_sends_one_and_its_choice():
    run = Run(Ifca, groups([1, 2, -1]), local={"lr": 0.1}, n_clusters=4).go(5)
    ledger = run.server.ledger
    assert ledger.down_bits == 5 * 3 * 4 * 64
    assert ledger.up_bits == 5 * 3 * 64 * run.method.payload() == 5 * 3 * 64 * 2


def test_a_run_records_what_clients_chose(tmp_path):
    result = mpifed.run(
        "synthetic-fedem",
        output=tmp_path / "run",
        clients=8,
        rounds=2,
        quiet=True,
        algorithm={"name": "ifca", "n_clusters": 2},
        **{"data.n_test": 20, "data.dimension": 6, "evaluation.every": 1},
        **{
            "evaluation.unseen_fraction": 0.25,
            "participation": 0.5,
            "evaluation.unseen_shares": [0.0, 0.5],
        },
    )
    assert set(result.clients["cluster"]) <= {0, 1}
    grown = result.clients["test_accuracy_by_share"][result.clients["unseen"].astype(bool)]
    assert grown.shape[1] == 2 and np.isfinite(grown).all()
    assert len(mpifed.load(tmp_path / "run").components) == 2
