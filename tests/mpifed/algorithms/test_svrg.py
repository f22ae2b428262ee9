"""SVRG: rounds in numpy, and GT-SVRG, which ends at the optimum by gradients of single samples."""

from __future__ import annotations

import numpy as np
import pytest
from convex import Run, gossip, problem_of

N, M, D = 5, 6, 3
DRAW = np.random.default_rng(3)
XS = DRAW.normal(size=(N, M, D)) + 1
YS = np.einsum("nmd,nd->nm", XS, DRAW.normal(size=(N, D))) + DRAW.normal(size=(N, M))
OPTIMUM = np.linalg.lstsq(XS.reshape(-1, D), YS.ravel(), rcond=None)[0]
TRACKING = {"name": "tracking", "tracking_mixes": "before"}


def gossiping(kind, correction, lr=0.02, **options):
    local = {"lr": lr, "steps": 1, "batch_size": 1}
    return Run(kind, problem_of(XS, YS), local=local, exchange=gossip(correction), **options)


def test_rounds_follow_a_sample_its_gradient_at_the_anchor_and_the_whole_one_there():
    """The sample of a step is the one among all by which a step of FedAvg is explained."""
    run, plain = (gossiping(kind, "none") for kind in ("svrg", "fedavg"))
    w = run.mixing_matrix()

    def gradients(x):
        return XS * (np.einsum("nmd,nd->nm", XS, x) - YS)[..., None]

    x = run.state.model[:, 0].numpy()
    assert (x == plain.state.model[:, 0].numpy()).all()
    for k in range(12):
        if k % 10 == 0:
            anchor = x
        plain.start_from(model=run.state.model)
        moved = np.linalg.solve(w, plain.go().state.model[:, 0].numpy())
        steps = (x - moved)[:, None] / 0.02 - gradients(x)
        drawn = np.abs(steps).sum(2).argmin(1)
        assert np.abs(steps[np.arange(N), drawn]).max() < 1e-9
        noise = (gradients(x) - gradients(anchor))[np.arange(N), drawn]
        x = w @ (x - 0.02 * (noise + gradients(anchor).mean(1)))
        assert run.go().state.model[:, 0].numpy() == pytest.approx(x, abs=1e-12)


def test_gt_svrg_ends_at_the_optimum_at_one_step_size():
    found, plain = (gossiping(kind, TRACKING, lr=0.04) for kind in ("svrg", "fedavg"))
    assert found.go(450).models() == pytest.approx(np.tile(OPTIMUM, (N, 1)), abs=1e-7)
    assert np.abs(plain.go(100).models() - OPTIMUM).max() > 1e-3
