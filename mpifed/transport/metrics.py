"""How far a map is from the optimal one (Korotin et al. 2021, section 4; published code)."""

from __future__ import annotations

from typing import Literal

import numpy as np
from torch import Tensor

from mpifed.transport.benchmark import Benchmark

SCORED = 4096
"""Fresh samples of P on which a map is scored."""

Variance = Literal["trace", "l1"]


def l2_uvp(mapped: Tensor, benchmark: Benchmark, x: Tensor, variance: Variance = "trace") -> float:
    """The unexplained variance in per cent: 100 E ||m(X) - m*(X)||^2 / Var(Q).

    ``x`` are samples of P (B, d), ``mapped`` m(x). 0 is the optimal map, 100 the constant one.
    Var(Q) is the trace of the covariance as in the published code; ``l1`` is the text of Dieuleveut
    et al. 2025, section 7.2, the sum of the absolute entries of the covariance.
    """
    error = (mapped.double() - benchmark.true_map(x.double())).square().sum(1).mean()
    spread = benchmark.target_variance
    if variance == "l1":
        spread = float(np.abs(benchmark.target_covariance).sum())
    return 100 * float(error) / spread


def cosine(mapped: Tensor, benchmark: Benchmark, x: Tensor) -> float:
    """The cosine of m - id and m* - id in L2(P), estimated from x (B, d) and ``mapped`` m(x).

    1 for the optimal map. 0 for the identity, of which no angle exists, as in the published code.
    """
    x = x.double()
    moved, best = mapped.double() - x, benchmark.true_map(x) - x
    lengths = float(moved.square().sum().sqrt() * best.square().sum().sqrt())
    return float((moved * best).sum()) / lengths if lengths > 0 else 0.0
