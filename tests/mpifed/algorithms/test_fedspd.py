"""FedSPD: rounds in numpy, what they send, and what clients deploy."""

from __future__ import annotations

import numpy as np
import pytest
from convex import Run, gossip
from least_squares import LeastSquares

from mpifed.method import Draws

S, LR = 2, 0.05


@pytest.mark.parametrize("cluster_draw", ["mixture", "uniform"])
def test_rounds_and_deployed_models_are_those_of_numpy(cluster_draw):
    problem = LeastSquares(participation=1.0)
    run = Run(
        "fedspd",
        problem.data,
        local={"lr": LR, "epochs": 2, "batch_size": 20},
        exchange=gossip(),
        n_clusters=S,
        cluster_draw=cluster_draw,
    )
    near = run.mixing_matrix() != 0
    c, floats = run.state.models.numpy().copy(), 0

    def labels(i):
        return (np.square(problem.xs[i] @ c[i].T - problem.ys[i][:, None])).argmin(1)

    def shares(i):
        return np.bincount(labels(i), minlength=S) / len(problem.ys[i])

    def descended(w, x, y, steps):
        for _ in range(steps if len(y) else 0):
            w = w - LR * x.T @ (x @ w - y) / len(y)
        return w

    for k in range(1, 6):
        draws, trained = Draws(0, k), np.full_like(c, np.nan)
        for i, (x, y) in enumerate(zip(problem.xs, problem.ys, strict=True)):
            own, clusters = labels(i), range(S)
            if k == 1:
                own = draws.stream("clusters of samples", i).integers(S, size=len(y))
            else:
                p = shares(i) if cluster_draw == "mixture" else np.full(S, 1 / S)
                clusters = [draws.stream("cluster", i).choice(S, p=p)]
            for s in clusters:
                trained[i, s] = descended(c[i, s], x[own == s], y[own == s], 2)
        sent = ~np.isnan(trained[..., 0])
        for s in range(S):
            same = near & sent[:, s] & sent[:, s, None]
            for i in np.flatnonzero(sent[:, s]):
                c[i, s] = trained[same[i], s].mean(axis=0)
            floats += 3 * (same.sum() - sent[:, s].sum())
        floats += 0 if k == 1 else near.sum() - 5
        run.go()
        assert run.state.models.numpy() == pytest.approx(c, abs=1e-12)
        assert run.exchange.ledger.up_floats == floats
    deployed = [descended(shares(i) @ c[i], problem.xs[i], problem.ys[i], 1) for i in range(5)]
    assert run.models() == pytest.approx(np.array(deployed), abs=1e-12)
