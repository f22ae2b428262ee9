"""FedAdam: two rounds by hand (Reddi et al. 2021, Algorithm 2), with both weights of clients."""

from __future__ import annotations

import numpy as np
import pytest
from convex import Run
from personal_runs import LOCAL, gradient, mean, regression, taking_part

from mpifed.algorithms.global_model.fedadam import FedAdam


@pytest.mark.parametrize("corrected", [False, True])
@pytest.mark.parametrize("by", ["samples", "uniform"])
def test_rounds_are_those_of_a_program_in_numpy(by, corrected):
    data, samples = regression()
    rate, tau, beta1, beta2 = 0.3, 0.05, 0.9, 0.8
    betas = {"beta1": beta1, "beta2": beta2, "bias_correction": corrected}
    run = Run(FedAdam, data, local=LOCAL, server_lr=rate, tau=tau, client_weights=by, **betas)
    x, m, v = run.x.copy(), 0.0, 0.0 if corrected else tau**2
    for round in (1, 2):
        here = taking_part(data, round)
        moves = {i: -LOCAL["lr"] * gradient(samples[i], x) for i in here}
        delta = mean(moves, here, by == "samples")
        m, v = beta1 * m + (1 - beta1) * delta, beta2 * v + (1 - beta2) * delta**2
        first, second = m, v
        if corrected:
            first, second = m / (1 - beta1**round), v / (1 - beta2**round)
        x = x + rate * first / (np.sqrt(second) + tau)
    assert run.go(2).x == pytest.approx(x, rel=1e-12)
