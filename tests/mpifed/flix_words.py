"""A small run of FLIX, in words."""

from __future__ import annotations

SMALL = (
    "synthetic-fedem",
    "clients=5",
    "rounds=6",
    "dtype=float64",
    "data.n_test=10",
    "data.dimension=6",
    "evaluation.every=2",
    "algorithm=flix",
    "algorithm.l2=0.1",
    "algorithm.local_iterations=200",
    "--quiet",
)
