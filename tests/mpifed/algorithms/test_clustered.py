"""Clustered FL: who ends in which cluster, with which model, and what a federation sends."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from convex import Run, logistic, problem_of, quadratics

import mpifed

ASIDE = {"eps1": 1e-2, "eps2": 0.1, "warm_up": 0}
DESCENT = {"lr": 0.1, "epochs": 5}


def curved(slopes, centres):
    return quadratics([[[float(a)]] for a in slopes], [[float(c)] for c in centres])


def clusters_of(run):
    return run.state.cluster.tolist()


def test_opposite_groups_are_told_apart_and_each_ends_as_fedavg_of_its_clients():
    """sum g_i c_i / sum g_i, g_i = 1 - (1 - eta a_i)^5, within each group."""
    data = curved([1, 1, 3, 3], [0, -10, 4, -6])
    run = Run("clustered", data, local=DESCENT, **ASIDE).go(150)
    assert clusters_of(run) == [0, 1, 0, 1]
    limit = 2.680532285
    assert run.models()[:, 0] == pytest.approx([limit, limit - 10] * 2, rel=1e-9)
    assert run.metrics["n_clusters"] == 2
    models = run.algorithm.models_of(run.state, run.clients)
    assert models[:, 0].tolist() == pytest.approx([limit, limit - 10], rel=1e-9)


def test_a_second_split_names_the_right_clients():
    """Positions in a cluster are other numbers than those of its clients."""
    data = curved([1] * 6, [8, -8, -2, 8, -2, -8])
    run = Run("clustered", data, local=DESCENT, **ASIDE).go(120)
    assert clusters_of(run) == [0, 1, 2, 0, 2, 1]
    assert run.models()[:, 0] == pytest.approx([8, -8, -2, 8, -2, -8], rel=1e-9)


def test_no_split_during_the_warm_up_nor_of_a_pair_nor_without_eps1():
    data = curved([1] * 4, [1, -1, 1, -1])
    run = Run("clustered", data, local=DESCENT, **{**ASIDE, "warm_up": 30}).go(30)
    assert clusters_of(run) == [0, 0, 0, 0]
    assert clusters_of(run.go(1)) == [0, 1, 0, 1]
    pair = Run("clustered", curved([1, 1], [1, -1]), local=DESCENT, **ASIDE).go(40)
    assert clusters_of(pair) == [0, 0]
    never = Run("clustered", data, local=DESCENT, **{**ASIDE, "eps1": 0.0}).go(40)
    assert clusters_of(never) == [0, 0, 0, 0]


def unequal(seed=0, n=5):
    """Least squares of clients with 3 to 7 samples in three dimensions."""
    draw = np.random.default_rng(seed)
    xs = [draw.normal(size=(m, 3)) for m in (4, 7, 3, 5, 6, 4, 5)[:n]]
    return xs, [x @ draw.normal(size=3) for x in xs]


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_one_cluster_is_fedavg(weights):
    xs, ys = unequal()
    if weights == "uniform":
        xs, ys = [x[:3] for x in xs], [y[:3] for y in ys]
    settings = {"lr": 0.1, "epochs": 2, "batch_size": 2, "momentum": 0.5}
    own = Run("clustered", problem_of(xs, ys), local=settings, eps1=0.0, client_weights=weights)
    average = Run("fedavg", problem_of(xs, ys), local=settings)
    for row in own.go(5).models():
        assert row == pytest.approx(average.go(5 - average.round).models()[0], rel=1e-12)


def numpy_rounds(xs, ys, first, rounds, eps1, eps2, warm_up, rate):
    """Single linkage for least squares, one full-batch step a round, in plain float64.

    Among all bipartitions it has the one with the least largest similarity across.
    """
    n, models = len(xs), np.tile(first, (len(xs), 1))
    clusters = [list(range(n))]
    for round in range(1, rounds + 1):
        residuals = [x @ w - y for x, w, y in zip(xs, models, ys, strict=True)]
        moves = np.array([-rate * x.T @ r / len(x) for x, r in zip(xs, residuals, strict=True)])
        unit = moves / np.linalg.norm(moves, axis=1, keepdims=True)
        similarity = unit @ unit.T
        after = []
        for members in clusters:
            small = np.linalg.norm(moves[members].mean(0)) < eps1
            large = max(np.linalg.norm(moves[i]) for i in members) > eps2
            if not (small and large and len(members) > 2 and round > warm_up):
                after.append(members)
                continue
            parts = [
                (part, [i for i in members if i not in part])
                for size in range(1, len(members))
                for part in itertools.combinations(members, size)
                if members[0] in part
            ]
            one, two = min(parts, key=lambda cut: similarity[np.ix_(*cut)].max())
            after += [list(one), two]
        clusters = after
        for members in clusters:
            models[members] += moves[members].mean(0)
    return models, {frozenset(members) for members in clusters}


@pytest.mark.parametrize("n", [5, 7])
def test_four_rounds_are_those_of_a_program_in_numpy(n):
    settings, differs = {"eps1": 10.0, "eps2": 0.01, "warm_up": 1}, 0
    for seed in range(3):
        xs, ys = unequal(seed, n)
        problem = problem_of(xs, ys)
        run = Run("clustered", problem, local={"lr": 0.1}, linkage="single", **settings)
        other = Run("clustered", problem, local={"lr": 0.1}, linkage="complete", **settings)
        models, members = numpy_rounds(xs, ys, run.models()[0], 4, rate=0.1, **settings)
        assert run.go(4).models() == pytest.approx(models, rel=1e-10)
        labels = np.array(clusters_of(run))
        assert {frozenset(np.flatnonzero(labels == c).tolist()) for c in set(labels)} == members
        assert len(members) > 2
        differs += clusters_of(run) != clusters_of(other.go(4))
    assert differs


def test_eps2_is_compared_with_the_norm_that_is_asked_for():
    """Updates (3, 4) and (-3, -4) lr: the norm is 5 lr, the largest entry 4 lr."""
    eye = [np.eye(2)] * 4
    centres = [[3.0, 4.0], [-3.0, -4.0], [3.0, 4.0], [-3.0, -4.0]]
    for norm, splits in (("euclidean", True), ("maximum", False)):
        options = {"eps1": 1e-2, "eps2": 0.45, "warm_up": 120, "update_norm": norm}
        run = Run("clustered", quadratics(eye, centres), local={"lr": 0.1}, **options).go(121)
        assert (run.metrics["n_clusters"] == 2) == splits


@pytest.mark.parametrize(("bound", "clusters"), [(0.7, [0, 1, 0]), (0.71, [0, 0, 0])])
def test_a_bound_on_the_error_of_gradients_keeps_similar_clients_together(bound, clusters):
    """Updates at right angles have s = 0: split where gamma_max < sqrt(1 / 2)."""
    data = quadratics([np.eye(2)] * 3, [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    options = {"eps1": 10.0, "eps2": 1e-3, "warm_up": 0, "gamma_max": bound}
    run = Run("clustered", data, local={"lr": 0.1}, **options)
    assert clusters_of(run.start_from(models=np.zeros_like(run.state.models)).go()) == clusters


def test_a_round_sends_one_model_each_way():
    run = Run("clustered", curved([1] * 4, [1, -1, 1, -1]), local=DESCENT, **ASIDE).go(40)
    ledger = run.exchange.ledger
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


# IFCA: which model each client chooses, and what becomes of the models.


def groups(centres, **how):
    return quadratics([[[1.0]]] * len(centres), [[float(c)] for c in centres], **how)


def choices(run):
    return run.deployed.results["cluster"].tolist()


@pytest.mark.parametrize("compression", [None, ("rand_k", {"fraction": 0.6})])
def test_with_one_cluster_it_is_fedavg_bit_for_bit(compression):
    settings = {"lr": 0.1, "batch_size": 16, "momentum": 0.9}
    data = logistic(participation=0.5)
    own, average = (
        Run(kind, data, compression, local=settings, **options).go(4)
        for kind, options in (("ifca", {"n_clusters": 1}), ("fedavg", {}))
    )
    assert torch.equal(own.state.models, average.state.model)
    assert torch.equal(own.state.optimizer.momentum, average.state.optimizer.momentum)


def test_first_models_are_apart_and_the_first_is_that_of_fedavg():
    run = Run("ifca", groups([1, 2]), n_clusters=3)
    assert len(run.state.models.unique()) == 3
    assert run.state.models[:1].equal(Run("fedavg", groups([1, 2])).state.model)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("averaging", ["models", "gradients"])
def test_groups_far_apart_are_recovered(averaging, seed):
    centres = [10, -10, 10, 10, -10]
    run = Run(
        "ifca", groups(centres), seed=seed, local={"lr": 0.9}, n_clusters=2, averaging=averaging
    )
    assert run.go(60).models()[:, 0] == pytest.approx(centres, rel=1e-6)
    chosen = choices(run)
    assert chosen[0] == chosen[2] == chosen[3] != chosen[1] == chosen[4]


def test_gradients_are_divided_by_the_number_of_all_participants():
    """theta_j - gamma / 5 sum_{i in S_j} (theta_j - c_i), with two and three clients."""
    centres = np.array([10.0, -10, 9, 12, -8])
    run = Run("ifca", groups(centres), local={"lr": 0.1}, n_clusters=2, averaging="gradients")
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
    run = Run("ifca", data, local={"lr": 0.1}, n_clusters=2, averaging="gradients")
    for _ in range(3):
        before = run.state.models[:, 0].numpy().copy()
        here = run.participants
        chosen = np.abs(before[:, None] - centres[here]).argmin(0)
        own = [(before[label] - centres[here][chosen == label]).sum() for label in range(2)]
        run.go(1)
        expected = before - 0.1 / len(here) * np.array(own)
        assert len(here) < 5 and run.state.models[:, 0].numpy() == pytest.approx(
            expected, rel=1e-12
        )


def test_a_model_that_nobody_chooses_stays():
    run = Run("ifca", groups([10, 10]), local={"lr": 0.1}, n_clusters=2)
    first = run.state.models.clone()
    unchosen = int(first.argmin())
    assert run.go(3).state.models[unchosen].equal(first[unchosen])
    assert not run.state.models[1 - unchosen].equal(first[1 - unchosen])


def test_four_rounds_are_those_of_a_program_in_numpy_of_ifca():
    draw = np.random.default_rng(3)
    sizes = (4, 7, 3, 5, 6, 8)
    xs = [draw.normal(size=(n, 3)) for n in sizes]
    ys = [x @ (draw.normal(size=3) + 3 * (-1) ** i) for i, x in enumerate(xs)]
    run = Run(
        "ifca",
        problem_of(xs, ys, participation=0.5),
        local={"lr": 0.05, "epochs": 2},
        n_clusters=2,
    )
    models = run.state.models.numpy().copy()
    for _ in range(4):
        sums, masses = np.zeros((2, 3)), np.zeros(2)
        for i in run.participants:
            losses = [((xs[i] @ w - ys[i]) ** 2).mean() / 2 for w in models]
            best = int(np.argmin(losses))
            w = models[best].copy()
            for _ in range(2):
                w -= 0.05 * xs[i].T @ (xs[i] @ w - ys[i]) / sizes[i]
            sums[best] += sizes[i] * w
            masses[best] += sizes[i]
        for j in np.flatnonzero(masses):
            models[j] = sums[j] / masses[j]
        run.go(1)
        assert run.state.models.numpy() == pytest.approx(models, rel=1e-11)
    assert len(set(choices(run))) == 2


def test_a_client_gets_all_models_and_sends_one_and_its_choice():
    run = Run("ifca", groups([1, 2, -1]), local={"lr": 0.1}, n_clusters=4).go(5)
    ledger = run.exchange.ledger
    assert ledger.down_bits == 5 * 3 * 4 * 64
    assert ledger.up_bits == 5 * 3 * 64 * run.algorithm.payload() == 5 * 3 * 64 * 2


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
