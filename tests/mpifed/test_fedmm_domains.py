"""FedMM and its twin where messages are lossy and few clients take part: S and Theta are kept."""

from __future__ import annotations

import numpy as np
import torch
from test_fedmm import CONSTANT, MIXTURE, Run, blobs, data_of

from mpifed.algorithms.fedmm import FedMM

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
