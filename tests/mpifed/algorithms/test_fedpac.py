"""FedPAC: rounds of a network of one tanh layer in numpy, and weights of heads by all supports."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from convex import Run, problem_of
from numpy_mlp import BODY, HEAD, HIDDEN, INPUTS, present
from test_fedproto import NETWORK, STRENGTH, WHOLE, classes, represented, slope


def least(matrix):
    """The minimiser of a' P a over the simplex, by trying every support."""
    best, value = None, np.inf
    n = len(matrix)
    for size in range(1, n + 1):
        for chosen in map(list, itertools.combinations(range(n), size)):
            a = np.zeros(n)
            a[chosen] = np.linalg.solve(matrix[np.ix_(chosen, chosen)], np.ones(size))
            a /= a.sum()
            if a.min() >= 0 and a @ matrix @ a < value:
                best, value = a, a @ matrix @ a
    return best


def moments(row, x, y):
    """h_i and V_i by their definitions."""
    z = represented(row, x)
    h = np.array(
        [(y == k).mean() * z[y == k].mean(0) if (y == k).any() else 0 * z[0] for k in (0, 1)]
    )
    return h, ((z**2).sum(1).mean() - (h**2).sum()) / len(y)


def collaborators(found):
    """alpha of all clients, from h_i and V_i."""
    rows = []
    for h, _ in found:
        apart = np.array([(h - other).ravel() for other, _ in found])
        rows.append(least(apart @ apart.T + np.diag([v for _, v in found])))
    return np.array(rows)


@pytest.mark.parametrize("participation", [0.5, 1.0])
def test_rounds_written_out(participation):
    data, samples = classes(participation)
    local = {**WHOLE, "epochs": 3}
    run = Run("fedpac", data, local=local, fedpac_lambda=STRENGTH, head_epochs=2)
    body, heads = run.state.body[0].numpy().copy(), run.state.heads[:, 0].numpy().copy()
    prototypes, mixed = {}, 0
    for _ in range(5):
        who, weights = present(run)
        bodies, tuned, found, shown = [], [], [], {}
        for i in who:
            row = np.empty(len(BODY) + len(HEAD))
            row[BODY], row[HEAD] = body, heads[i]
            found.append(moments(row, *samples[i]))
            for _ in range(2):
                row[HEAD] -= 0.3 * slope(row, *samples[i], {})[HEAD]
            for _ in range(3):
                row[BODY] -= 0.3 * slope(row, *samples[i], prototypes)[BODY]
            for z, j in zip(represented(row, samples[i][0]), samples[i][1], strict=True):
                shown.setdefault(j, []).append(z)
            bodies.append(row[BODY].copy())
            tuned.append(row[HEAD].copy())
        if len(who):
            body = weights @ np.array(bodies)
            alpha = collaborators(found)
            heads[who] = alpha @ np.array(tuned)
            mixed += ((alpha > 1e-3) & (alpha < 0.999)).any()
        prototypes |= {j: np.mean(z, 0) for j, z in shown.items()}
        run.go()
        assert run.state.body[0].numpy() == pytest.approx(body, abs=1e-7)
        assert run.state.heads[:, 0].numpy() == pytest.approx(heads, abs=1e-6)
        for j, known in prototypes.items():
            assert run.state.prototypes[j].numpy() == pytest.approx([*known, 1], abs=1e-7)
    assert (
        mixed and run.algorithm.payload() == len(BODY) + len(HEAD) + 2 * (HIDDEN + 1 + HIDDEN) + 1
    )


def test_clients_that_are_alike_count_alike_even_without_variance():
    """One sample each, the same: V_i = 0, and all h_i are equal."""
    x = np.ones((1, INPUTS))
    problem = problem_of([x] * 3, [np.array([1])] * 3, "classification", 1.0, NETWORK)
    apart = np.random.default_rng(0).normal(size=(3, 1, len(HEAD)))
    run, plain = (
        Run(name, problem, local=WHOLE, head_epochs=1, **options).start_from(heads=apart).go()
        for name, options in (("fedpac", {"fedpac_lambda": 0.0}), ("fedrep", {}))
    )
    heads = run.state.heads[:, 0].numpy()
    mean = plain.state.heads[:, 0].numpy().mean(0)
    assert heads == pytest.approx(np.tile(mean, (3, 1)), abs=1e-9)


def test_a_client_alone_is_one_of_fedrep():
    """It takes part by itself, so that its head is its own; without a pull its body is too."""
    data, _ = classes(participation=0.25)
    run = Run("fedpac", data, local=WHOLE, fedpac_lambda=0.0).go(4)
    plain = Run("fedrep", data, local=WHOLE, head_epochs=1).go(4)
    assert run.models() == pytest.approx(plain.models(), abs=1e-12)
