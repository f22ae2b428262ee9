from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loading import dataset_of
from scipy.optimize import linear_sum_assignment

from mpifed.dataset import kmeans
from mpifed.errors import InputError
from mpifed.testing import run_command


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    k = draw(st.integers(1, 6))
    n, dimension = draw(st.integers(k, 30)), draw(st.integers(1, 3))
    ties = draw(st.booleans())
    points = rng.integers(0, 4, (n, dimension)) if ties else rng.normal(size=(n, dimension))
    return points.astype(float), k


@given(problems())
@settings(deadline=None)
def test_the_assignment_is_the_cheapest_of_its_sizes(problem):
    points, k = problem
    clusters = kmeans.equal_clusters(points, k, np.random.default_rng(0))
    sizes = np.bincount(clusters.owner, minlength=k)
    assert sizes.sum() == len(points) and sizes.max() - sizes.min() <= 1
    costs = ((points[:, None] - clusters.centres) ** 2).sum(axis=2)
    copies = np.repeat(costs, sizes, axis=1)
    best = copies[linear_sum_assignment(copies)].sum()
    assert costs[np.arange(len(points)), clusters.owner].sum() == pytest.approx(best, abs=1e-9)
    assert clusters.inertia == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(("n", "k"), [(60, 4), (61, 4), (7, 7), (20, 1)])
def test_separated_groups_are_found_and_sizes_are_exact(n, k):
    rng = np.random.default_rng(0)
    group = rng.permutation(np.arange(n) % k)
    points = 100.0 * np.eye(k, 3 + k)[group] + rng.normal(size=(n, 3 + k))
    clusters = kmeans.equal_clusters(points, k, np.random.default_rng(1))
    sizes = np.bincount(clusters.owner, minlength=k)
    assert sizes.max() - sizes.min() <= 1
    # Each cluster is one group and each group one cluster.
    assert len({*zip(group.tolist(), clusters.owner.tolist(), strict=True)}) == k
    assert np.array_equal(clusters.cell(points), clusters.owner)
    for cluster in range(k):
        own = points[clusters.owner == cluster]
        assert clusters.centres[cluster] == pytest.approx(own.mean(axis=0))


def test_no_exchange_of_two_points_makes_clusters_tighter():
    points = np.random.default_rng(0).normal(size=(90, 2))
    clusters = kmeans.equal_clusters(points, 6, np.random.default_rng(1))
    distance = ((points[:, None] - clusters.centres) ** 2).sum(axis=2)
    own = distance[np.arange(90), clusters.owner]
    swapped = distance[:, clusters.owner]
    assert np.all(own[:, None] + own <= swapped + swapped.T + 1e-9)
    assert clusters.inertia == pytest.approx(own.sum())


def test_equal_points_are_no_trouble():
    clusters = kmeans.equal_clusters(np.ones((10, 3)), 3, np.random.default_rng(0))
    assert sorted(np.bincount(clusters.owner)) == [3, 3, 4] and clusters.inertia == 0


def test_fewer_points_than_clusters_are_refused():
    with pytest.raises(InputError, match=r"clients.*\b4\b.*\b3 samples"):
        kmeans.equal_clusters(np.ones((3, 2)), 4, np.random.default_rng(0))


def test_many_clusters_are_parted_again_and_again_and_are_equal_too(tmp_path):
    n, k = 3000, 850  # points times squared clusters are too many for one assignment
    points = np.random.default_rng(0).normal(size=(n, 3))
    lines = (f"{i % 2} " + "".join(f" {j + 1}:{x!r}" for j, x in enumerate(row))
             for i, row in enumerate(points.tolist()))  # fmt: skip
    (tmp_path / "points").write_text("\n".join(lines))

    options = {"partition": "kmeans", "intercept": False}
    dataset = dataset_of("libsvm", k, path=str(tmp_path / "points"), **options)
    train = dataset.load(np.arange(k), torch.float64).train
    parts, points = np.repeat(np.arange(k), train.counts), train.x.numpy()
    sizes = np.bincount(parts, minlength=k)
    assert sizes.sum() == n and sizes.max() - sizes.min() <= 1
    centres = np.array([points[parts == cluster].mean(0) for cluster in range(k)])
    inertia = ((points - centres[parts]) ** 2).sum()
    chance = ((points - points.mean(0)) ** 2).sum()
    assert inertia <= 0.05 * chance


def test_an_old_configuration_that_names_a_solver_is_read_with_a_remark(tmp_path, capsys):
    data = {"name": "dictionary", "samples": 40, "kmeans_solver": "own"}
    mapping = {"algorithm": "fedmm", "clients": 4, "rounds": 1, "data": data}
    (tmp_path / "old.yaml").write_text(json.dumps(mapping))
    assert run_command(["run", tmp_path / "old.yaml", "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert "kmeans_solver" not in plan["configuration"]["data"]
    assert any("data.kmeans_solver" in line for line in plan["plan"]["remarks"])
