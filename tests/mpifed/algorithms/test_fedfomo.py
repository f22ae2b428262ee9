"""FedFomo: rounds in numpy, with and without validation samples, and who asks for whom."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from convex import Run
from least_squares import LeastSquares

from mpifed.method import Draws
from mpifed.testing import find_item


def validated(problem):
    """Three of the clients have validation samples: those of others, turned round."""
    draw = np.random.default_rng(5)
    sizes = np.array([3, 0, 2, 0, 4])
    xs = [draw.normal(size=(m, 3)) for m in sizes]
    ys = [draw.normal(size=m) for m in sizes]
    samples = zip(problem.data.samples, xs, ys, strict=True)
    problem.data.samples = [(*train, x, y) for train, x, y in samples]
    return xs, ys


@pytest.mark.parametrize("with_validation", [False, True])
def test_rounds_are_those_of_numpy(with_validation):
    """All participants' models are asked for, so that no draw counts."""
    problem = LeastSquares(participation=0.6)
    xs, ys = validated(problem) if with_validation else (problem.xs, problem.ys)
    local = {"lr": 0.1, "epochs": 3, "batch_size": 20}
    run = Run("fedfomo", problem.data, local=local, fomo_models=9)
    own, affinity = run.state.models[:, 0].numpy().copy(), np.zeros((5, 5))

    def risk(i, w):
        if not len(xs[i]):
            return problem.risk(i, w)
        return np.square(xs[i] @ w - ys[i]).mean() / 2

    moved, models = 0, 0
    for _ in range(6):
        chosen, trained = run.participants, own.copy()
        models += len(chosen) * (len(chosen) - 1)
        for i in chosen:
            for _ in range(3):
                trained[i] -= 0.1 * problem.gradient(i, trained[i])
        after = own.copy()
        for i in chosen:
            ways = trained[chosen] - own[i]
            w = np.array([risk(i, own[i]) - risk(i, trained[n]) for n in chosen])
            w /= np.linalg.norm(ways, axis=1)
            affinity[i, chosen] += w
            good = np.maximum(w, 0)
            if good.any():
                after[i] += good @ ways / good.sum()
                moved += (good > 0).sum() > 1
        own = after
        run.go()
        assert run.models() == pytest.approx(own, abs=1e-12)
        assert run.state.affinity.numpy() == pytest.approx(affinity, abs=1e-11)
    assert moved
    assert run.exchange.ledger.down_bits == 64 * 3 * models


def test_the_best_are_asked_for_but_for_some_at_random():
    """Client 3's own model is always there, and counts among those it does not ask for."""
    method = find_item("algorithm", "fedfomo")
    gains = np.tile([5.0, 1.0, 4.0, 9.0, -2.0, 3.0], (1, 1))
    clients = SimpleNamespace(ids=np.array([3]))
    made = {
        epsilon: np.array(
            [
                method(
                    None, None, fomo_models=2, fomo_epsilon=epsilon, fomo_decay=0.0
                ).requested_models(gains, np.arange(6), clients, Draws(seed, 1))[0]
                for seed in range(400)
            ]
        )
        for epsilon in (0.0, 0.5, 1.0)
    }
    assert (made[0.0] == [1, 0, 1, 1, 0, 0]).all()
    for found in made.values():
        assert (found.sum(1) == 3).all() and found[:, 3].all()
    shares = made[1.0].mean(0)[[0, 1, 2, 4, 5]]
    assert shares == pytest.approx(0.4, abs=0.08)
    # The best one: at once, or drawn, or at the second choice, of four that are left.
    both = 0.5 + 0.5 * (1 / 5 + 4 / 5 * (0.5 + 0.5 / 4))
    assert made[0.5].mean(0)[0] == pytest.approx(both, abs=0.07)
    falls = method(None, None, fomo_models=2, fomo_epsilon=1.0, fomo_decay=0.5)
    assert (
        falls.requested_models(gains, np.arange(6), clients, Draws(0, 3))[0] == [1, 0, 1, 1, 0, 0]
    ).all()


def test_without_others_a_client_keeps_what_lowers_its_loss():
    problem = LeastSquares(participation=1.0)
    local = {"lr": 0.1, "batch_size": 20}
    run = Run("fedfomo", problem.data, local=local, fomo_models=0)
    own = run.state.models[:, 0].numpy().copy()
    own = np.array([w - 0.1 * problem.gradient(i, w) for i, w in enumerate(own)])
    assert run.go().models() == pytest.approx(own, abs=1e-13)
    assert run.exchange.ledger.down_bits == 0
