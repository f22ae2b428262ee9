"""FedMM and its twin where messages are lossy and few clients take part: S and Theta are kept."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from test_fedmm import CONSTANT, MIXTURE, Run, blobs, data_of, least_squares

from mpifed.algorithms.fedmm import FedMM
from mpifed.algorithms.fedmm_theta import FedMMTheta
from mpifed.surrogates.base import onto_domain

FEW = {"name": "bernoulli", "p": 0.3}
LOSSY = ("quantise", {"bits": 3})
ALL = {**MIXTURE, "learn": "all"}


def test_a_mixture_learnt_whole_from_lossy_messages_stays_one():
    run = Run(FedMM, data_of(np.split(blobs(), 6), FEW), ALL, LOSSY, **CONSTANT)
    first, surrogate = run.objective(), run.method.surrogate
    for _ in range(15):
        run.go()
        s1, s2, s3 = surrogate._blocks(run.s)
        assert torch.allclose(s2.sum(), torch.ones(()).double())
        scatter = s3 - s1[:, :, None] * s1[:, None, :] / s2[:, None, None]
        assert float(torch.linalg.eigvalsh(scatter).min()) >= -1e-9 * float(s3.abs().max())
        # Without it 1e5 to 1e8, and infinite.
        assert run.objective() < 10 * first
    assert run.objective() < first


BOX = {"name": "quadratic", "rho": 0.1, "regularisation": "box", "radius": 0.1}


@pytest.mark.parametrize(
    ("surrogate", "targets"),
    [(BOX, 1), ({**BOX, "regularisation": "ball"}, 1), (ALL, 0)],
    ids=["box", "ball", "mixture"],
)
@pytest.mark.parametrize("compressor", [None, LOSSY])
def test_the_twin_stays_where_its_penalty_is_finite(surrogate, targets, compressor):
    parts = least_squares() if targets else np.split(blobs(), 6)
    data = data_of(parts, FEW, targets=targets)
    run = Run(FedMMTheta, data, surrogate, compressor, **CONSTANT)
    for _ in range(20):
        run.go()
        theta = run.theta
        assert torch.allclose(onto_domain(run.method.surrogate, theta), theta, rtol=0, atol=1e-12)
        assert np.isfinite(run.objective())
