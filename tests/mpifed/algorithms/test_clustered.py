"""Clustered FL: who ends in which cluster, with which model, and what a federation sends."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from convex import Run, clients_of, quadratics

import mpifed
from mpifed.algorithms.clusters.clustered import Clustered, bipartition
from mpifed.algorithms.global_model.fedavg import FedAvg

ASIDE = {"eps1": 1e-2, "eps2": 0.1, "warm_up": 0}
DESCENT = {"lr": 0.1, "epochs": 5}


def curved(slopes, centres):
    return quadratics([[[float(a)]] for a in slopes], [[float(c)] for c in centres])


def clusters_of(run):
    return run.state.cluster.tolist()


def test_opposite_groups_are_told_apart_and_each_ends_as_fedavg_of_its_clients():
    """sum g_i c_i / sum g_i, g_i = 1 - (1 - eta a_i)^5, within each group."""
    data = curved([1, 1, 3, 3], [0, -10, 4, -6])
    run = Run(Clustered, data, local=DESCENT, **ASIDE).go(150)
    assert clusters_of(run) == [0, 1, 0, 1]
    limit = 2.680532285
    assert run.deployed()[:, 0] == pytest.approx([limit, limit - 10] * 2, rel=1e-9)
    assert run.measured() == {"n_clusters": 2}
    models = run.method.models_of(run.state, run.clients)
    assert models[:, 0].tolist() == pytest.approx([limit, limit - 10], rel=1e-9)


def test_a_second_split_names_the_right_clients():
    """Positions in a cluster are other numbers than those of its clients."""
    data = curved([1] * 6, [8, -8, -2, 8, -2, -8])
    run = Run(Clustered, data, local=DESCENT, **ASIDE).go(120)
    assert clusters_of(run) == [0, 1, 2, 0, 2, 1]
    assert run.deployed()[:, 0] == pytest.approx([8, -8, -2, 8, -2, -8], rel=1e-9)


def test_no_split_during_the_warm_up_nor_of_a_pair_nor_without_eps1():
    data = curved([1] * 4, [1, -1, 1, -1])
    run = Run(Clustered, data, local=DESCENT, **{**ASIDE, "warm_up": 30}).go(30)
    assert clusters_of(run) == [0, 0, 0, 0]
    assert clusters_of(run.go(1)) == [0, 1, 0, 1]
    pair = Run(Clustered, curved([1, 1], [1, -1]), local=DESCENT, **ASIDE).go(40)
    assert clusters_of(pair) == [0, 0]
    never = Run(Clustered, data, local=DESCENT, **{**ASIDE, "eps1": 0.0}).go(40)
    assert clusters_of(never) == [0, 0, 0, 0]


def unequal(seed=0):
    """Least squares of five clients with 3 to 7 samples in three dimensions."""
    draw = np.random.default_rng(seed)
    xs = [draw.normal(size=(n, 3)) for n in (4, 7, 3, 5, 6)]
    return xs, [x @ draw.normal(size=3) for x in xs]


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_one_cluster_is_fedavg(weights):
    xs, ys = unequal()
    if weights == "uniform":
        xs, ys = [x[:3] for x in xs], [y[:3] for y in ys]
    settings = {"lr": 0.1, "epochs": 2, "batch_size": 2, "momentum": 0.5}
    own = Run(Clustered, clients_of(xs, ys), local=settings, eps1=0.0, client_weights=weights)
    average = Run(FedAvg, clients_of(xs, ys), local=settings)
    for row in own.go(5).deployed():
        assert row == pytest.approx(average.go(5 - average.round).deployed()[0], rel=1e-12)


def best_cut(similarity):
    """The least largest similarity across, of all bipartitions."""
    n, found = len(similarity), np.inf
    for size in range(1, n // 2 + 1):
        for part in itertools.combinations(range(n), size):
            inside = np.isin(np.arange(n), part)
            found = min(found, similarity[inside][:, ~inside].max())
    return found


def test_single_linkage_minimises_the_similarity_across():
    draw, differs = np.random.default_rng(1), 0
    for _ in range(20):
        updates = draw.normal(size=(7, 3))
        products = torch.from_numpy(updates @ updates.T)
        unit = updates / np.linalg.norm(updates, axis=1, keepdims=True)
        least = best_cut(unit @ unit.T)
        second, across = bipartition(products, "single")
        assert across == pytest.approx(least, abs=1e-10)
        assert not second[0] and second.any()
        differs += bipartition(products, "complete")[1] > least + 1e-6
    assert differs > 5


def numpy_rounds(xs, ys, first, rounds, eps1, eps2, warm_up, rate):
    """The same method for least squares, one full-batch step a round, in plain float64."""
    n, models = len(xs), np.tile(first, (len(xs), 1))
    members = [list(range(n))]
    for round in range(1, rounds + 1):
        residuals = [x @ w - y for x, w, y in zip(xs, models, ys, strict=True)]
        moves = np.array([-rate * x.T @ r / len(x) for x, r in zip(xs, residuals, strict=True)])
        unit = moves / np.linalg.norm(moves, axis=1, keepdims=True)
        similarity = unit @ unit.T
        after = []
        for own in members:
            small = np.linalg.norm(moves[own].mean(0)) < eps1
            large = max(np.linalg.norm(moves[i]) for i in own) > eps2
            if not (small and large and len(own) > 2 and round > warm_up):
                after.append(own)
                continue
            parts = [
                (part, [i for i in own if i not in part])
                for size in range(1, len(own))
                for part in itertools.combinations(own, size)
                if own[0] in part
            ]
            one, two = min(parts, key=lambda cut: similarity[np.ix_(*cut)].max())
            after += [list(one), two]
        members = after
        for own in members:
            models[own] += moves[own].mean(0)
    return models, {frozenset(own) for own in members}


def test_four_rounds_are_those_of_a_program_in_numpy():
    xs, ys = unequal()
    settings = {"eps1": 10.0, "eps2": 0.01, "warm_up": 1}
    run = Run(Clustered, clients_of(xs, ys), local={"lr": 0.1}, linkage="single", **settings)
    first = run.deployed()[0]
    models, members = numpy_rounds(xs, ys, first, 4, rate=0.1, **settings)
    assert run.go(4).deployed() == pytest.approx(models, rel=1e-10)
    labels = np.array(clusters_of(run))
    assert {frozenset(np.flatnonzero(labels == c).tolist()) for c in set(labels)} == members
    assert len(members) > 2


def test_eps2_is_compared_with_the_norm_that_is_asked_for():
    """Updates (3, 4) and (-3, -4) lr: the norm is 5 lr, the largest entry 4 lr."""
    eye = [np.eye(2)] * 4
    centres = [[3.0, 4.0], [-3.0, -4.0], [3.0, 4.0], [-3.0, -4.0]]
    for norm, splits in (("euclidean", True), ("maximum", False)):
        options = {"eps1": 1e-2, "eps2": 0.45, "warm_up": 120, "update_norm": norm}
        run = Run(Clustered, quadratics(eye, centres), local={"lr": 0.1}, **options).go(121)
        assert (run.measured()["n_clusters"] == 2) == splits


def test_a_bound_on_the_error_of_gradients_keeps_similar_clients_together():
    """Updates at right angles have s = 0: split where gamma_max < sqrt(1 / 2)."""
    products = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 0.0], [1.0, 0.0, 1.0]]).double()
    for bound, leaving in ((0.7, [1]), (0.71, [])):
        rule = Clustered(None, None, gamma_max=bound).split
        assert rule.leaving(products)[0].tolist() == leaving


def test_a_round_sends_one_model_each_way():
    run = Run(Clustered, curved([1] * 4, [1, -1, 1, -1]), local=DESCENT, **ASIDE).go(40)
    ledger = run.server.ledger
    assert clusters_of(run) == [0, 1, 0, 1]
    assert ledger.up_bits == ledger.down_bits == 40 * 4 * 64


def test_a_run_records_clusters_and_unseen_clients_choose_one(tmp_path):
    result = mpifed.run(
        "synthetic-fedem",
        output=tmp_path / "run",
        clients=8,
        rounds=3,
        quiet=True,
        algorithm={"name": "clustered", "eps1": 100.0, "eps2": 0.001, "warm_up": 1},
        **{"data.n_test": 20, "data.dimension": 6, "evaluation.every": 1},
        **{"evaluation.unseen_fraction": 0.25},
        **{"evaluation.unseen_shares": [0.0, 0.5]},
    )
    grown = result.clients["test_accuracy_by_share"][result.clients["unseen"].astype(bool)]
    assert grown.shape[1] == 2 and np.isfinite(grown).all()
    count = result.metrics["n_clusters"]
    assert count[0] == count[1] == 1 and count[3] > 2
    cluster, unseen = result.clients["cluster"], result.clients["unseen"].astype(bool)
    assert sorted(set(cluster[~unseen])) == list(range(int(count[3])))
    assert set(cluster[unseen]) <= set(cluster[~unseen])
