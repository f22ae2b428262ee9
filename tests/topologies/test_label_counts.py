"""STL-FW: its objective, its neighbours, and what it refuses."""

import numpy as np
import pytest

from topologies import build_schedule


@pytest.fixture
def stl_fw(tmp_path):
    """The matrix of STL-FW for shares of labels, from a file."""

    def build(labels, neighbours, balance):
        path = str(tmp_path / "labels.csv")
        np.savetxt(path, labels, delimiter=",")
        options = {"neighbours": neighbours, "balance": balance}
        return build_schedule("stl_fw", len(labels), labels=path, **options).matrix(1)

    return build


def objective(w, labels, balance):
    """As the paper writes it."""
    n = len(w)
    mean = np.full((n, n), 1 / n)
    return (
        np.linalg.norm(w @ labels - mean @ labels) ** 2 + balance * np.linalg.norm(w - mean) ** 2
    ) / n


def one_label_each(n, classes):
    return np.eye(classes)[np.arange(n) % classes]


@pytest.mark.parametrize("balance", [0.0, 0.1, 1.0])
def test_each_neighbour_lowers_the_objective_which_is_the_papers(balance, stl_fw):
    labels = np.random.default_rng(0).dirichlet(np.full(5, 0.2), size=20)
    found = []
    for neighbours in (1, 2, 4, 8):
        matrix = stl_fw(labels, neighbours, balance)
        w = matrix.to_dense()
        assert matrix.doubly_stochastic and w.min() >= -1e-15
        away = (w > 0) & ~np.eye(20, dtype=bool)
        assert away.sum(0).max() <= neighbours and away.sum(1).max() <= neighbours
        found.append(objective(w, labels, balance))
    start = objective(np.eye(20), labels, balance)
    assert start > found[0] > found[1] > found[2] > found[3]


def test_steps_are_frank_wolfes_in_closed_form(stl_fw):
    """The first step from I, by brute force over gamma and over all permutations of four nodes."""
    from itertools import permutations

    labels, balance = np.array([[1, 0], [0.8, 0.2], [0.1, 0.9], [0.3, 0.7]]), 0.1
    w = stl_fw(labels, 1, balance).to_dense()
    mean = np.full((4, 4), 0.25)
    gram = labels @ labels.T + balance * np.eye(4)
    gradient = 2 / 4 * (np.eye(4) - mean) @ gram
    best = min(permutations(range(4)), key=lambda p: gradient[range(4), p].sum())
    target = np.eye(4)[list(best)]
    gammas = np.linspace(0, 1, 2001)
    values = [objective(np.eye(4) + g * (target - np.eye(4)), labels, balance) for g in gammas]
    step = gammas[int(np.argmin(values))]
    np.testing.assert_allclose(w, np.eye(4) + step * (target - np.eye(4)), atol=1e-3)


def test_few_neighbours_see_all_labels(stl_fw):
    """With one of ten labels a node, nine neighbours give every neighbourhood all of them."""
    labels = one_label_each(40, 10)
    w = stl_fw(labels, 9, balance=0.0).to_dense()
    np.testing.assert_allclose(w @ labels, 0.1, atol=1e-12)


def test_it_is_a_schedule_from_a_file(tmp_path):
    np.savetxt(tmp_path / "counts.csv", 7 * one_label_each(12, 3), delimiter=",")
    path = str(tmp_path / "counts.csv")
    schedule = build_schedule("stl_fw", 12, labels=path, neighbours=2, balance=0.0)
    assert schedule.period == 1 and schedule.doubly_stochastic and not schedule.symmetric
    np.testing.assert_allclose(
        schedule.matrix(3).to_dense() @ one_label_each(12, 3), 1 / 3, atol=1e-12
    )
