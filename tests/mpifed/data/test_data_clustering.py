from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from mpifed.config.configuration import decided, resolve
from mpifed.data import kmeans, partitions
from mpifed.data.kmeans import assign, equal_clusters, equal_sizes
from mpifed.errors import InputError


@st.composite
def problems(draw):
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    n, k = draw(st.integers(1, 30)), draw(st.integers(1, 6))
    ties = draw(st.booleans())
    costs = rng.integers(0, 4, (n, k)).astype(float) if ties else rng.normal(size=(n, k))
    sizes = rng.multinomial(n, rng.dirichlet(np.ones(k)))
    prices = rng.normal(size=k) if draw(st.booleans()) else np.zeros(k)
    return costs, sizes, prices


@given(problems())
@settings(deadline=None, max_examples=200)
def test_the_assignment_is_the_cheapest_of_its_sizes(problem):
    costs, sizes, prices = problem
    owner, found = assign(costs, sizes, prices)
    rows = np.arange(len(costs))
    assert np.array_equal(np.bincount(owner, minlength=len(sizes)), sizes)
    copies = np.repeat(costs, sizes, axis=1)
    best = copies[linear_sum_assignment(copies)].sum()
    assert costs[rows, owner].sum() == pytest.approx(best, abs=1e-9)
    # The prices are dual: no point would rather be elsewhere.
    assert np.all((costs - found)[rows, owner] <= (costs - found).min(axis=1) + 1e-9)


@given(st.lists(st.integers(0, 50), min_size=1, max_size=8))
def test_equal_sizes_differ_by_one_and_favour_the_large(counts):
    counts = np.array(counts)
    sizes = equal_sizes(counts)
    assert sizes.sum() == counts.sum() and sizes.max() - sizes.min() <= 1
    assert np.all(np.diff(sizes[np.argsort(-counts, kind="stable")]) <= 0)


@pytest.mark.parametrize(("n", "k"), [(60, 4), (61, 4), (7, 7), (20, 1)])
def test_separated_groups_are_found_and_sizes_are_exact(n, k):
    rng = np.random.default_rng(0)
    group = rng.permutation(np.arange(n) % k)
    points = 100.0 * np.eye(k, 3 + k)[group] + rng.normal(size=(n, 3 + k))
    clusters = equal_clusters(points, k, np.random.default_rng(1))
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
    clusters = equal_clusters(points, 6, np.random.default_rng(1))
    distance = ((points[:, None] - clusters.centres) ** 2).sum(axis=2)
    own = distance[np.arange(90), clusters.owner]
    swapped = distance[:, clusters.owner]
    assert np.all(own[:, None] + own <= swapped + swapped.T + 1e-9)
    assert clusters.inertia == pytest.approx(own.sum())


def test_equal_points_are_no_trouble():
    clusters = equal_clusters(np.ones((10, 3)), 3, np.random.default_rng(0))
    assert sorted(np.bincount(clusters.owner)) == [3, 3, 4] and clusters.inertia == 0


def test_fewer_points_than_clusters_are_refused():
    with pytest.raises(InputError, match="clients is 4, but 3 samples"):
        equal_clusters(np.ones((3, 2)), 4, np.random.default_rng(0))


@pytest.mark.parametrize(("n", "k"), [(600, 30), (637, 30), (50, 50), (200, 7)])
def test_many_clusters_are_parted_again_and_again_and_are_equal_too(n, k, monkeypatch):
    points = np.random.default_rng(0).normal(size=(n, 3))
    whole = equal_clusters(points, k, np.random.default_rng(1))
    alike = partitions.equal_parts(points, k, np.random.default_rng(1))
    assert np.array_equal(alike, whole.owner)
    monkeypatch.setattr(kmeans, "LARGE", 0)
    parts = partitions.equal_parts(points, k, np.random.default_rng(1))
    assert sorted(np.bincount(parts, minlength=k)) == sorted(np.bincount(whole.owner, minlength=k))
    centres = np.array([points[parts == cluster].mean(0) for cluster in range(k)])
    inertia = ((points - centres[parts]) ** 2).sum()
    assert inertia <= 1.5 * whole.inertia + 1e-9
    assert np.array_equal(parts, partitions.equal_parts(points, k, np.random.default_rng(1)))


@given(problems())
@settings(deadline=None)
def test_the_ranking_is_that_of_the_whole_table(problem):
    """``_Ranking`` after changes of columns, against sorting."""
    values, _, _ = problem
    ranking = kmeans._Ranking(values.copy())
    rng = np.random.default_rng(len(values))
    for _ in range(5):
        cluster = int(rng.integers(values.shape[1]))
        values[:, cluster] = rng.integers(0, 4, len(values))
        ranking.replace(cluster, values[:, cluster].copy())
        assert np.array_equal(ranking.first, values.argmin(axis=1))
        for other in range(values.shape[1]):
            rest = np.delete(values, other, axis=1).min(axis=1, initial=np.inf)
            assert np.array_equal(ranking.least_of_others(other), rest)


def test_an_old_configuration_that_names_a_solver_is_read_with_a_remark():
    data = {"name": "dictionary", "samples": 40, "kmeans_solver": "own"}
    mapping = {"algorithm": "fedmm", "clients": 4, "rounds": 1, "data": data}
    configuration = resolve(mapping)
    assert "kmeans_solver" not in configuration.data.options
    remark = "data.kmeans_solver has ended and changes nothing: mpifed itself makes clusters"
    assert any(line.startswith(remark) for line in decided(mapping, configuration))
