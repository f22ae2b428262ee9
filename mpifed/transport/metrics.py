"""The distance of a map from the optimal one (Korotin et al. 2021, section 4; published code)."""

from __future__ import annotations

from torch import Tensor

from mpifed.transport.benchmark import Benchmark

SCORED = 4096
"""Fresh samples of P on which a map is scored."""


def l2_uvp(mapped: Tensor, benchmark: Benchmark, x: Tensor) -> float:
    """Return the unexplained variance in per cent: 100 E ||m(X) - m*(X)||^2 / Var(Q).

    Parameters
    ----------
    mapped : Tensor, shape (B, d)
        m(x).
    benchmark : Benchmark
        The benchmark, with the optimal map m*.
    x : Tensor, shape (B, d)
        Samples of P.

    Returns
    -------
    float
        0 for the optimal map; 100 for the constant one, where Var(Q) is the trace.
    """
    error = (mapped.double() - benchmark.true_map(x.double())).square().sum(1).mean()
    return 100 * float(error) / benchmark.target_variance


def cosine(mapped: Tensor, benchmark: Benchmark, x: Tensor) -> float:
    """Return the cosine of m - id and m* - id in L2(P), estimated from samples.

    Parameters
    ----------
    mapped : Tensor, shape (B, d)
        m(x).
    benchmark : Benchmark
        The benchmark, with the optimal map m*.
    x : Tensor, shape (B, d)
        Samples of P.

    Returns
    -------
    float
        1 for the optimal map; 0 for the identity, which has no angle, as in the published code.
    """
    x = x.double()
    moved, best = mapped.double() - x, benchmark.true_map(x) - x
    lengths = float(moved.square().sum().sqrt() * best.square().sum().sqrt())
    return float((moved * best).sum()) / lengths if lengths > 0 else 0.0
