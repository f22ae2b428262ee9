"""FLIX, its compressed forms and the meta-learners: the same on any ranks, and after a resume."""

from __future__ import annotations

import pytest
from on_ranks import SMALL, same_after_a_resume, unlike_one_rank

CONVEX = {"dtype": "float64", "algorithm.l2": 0.1, "algorithm.local_iterations": 60}
RAND_K = {"compression": {"name": "rand_k", "k": 7}}
SOME = {"participation": 0.6}
CASES = {
    "flix": {"algorithm": "flix", **CONVEX},
    "gossip": {"algorithm": "flix", "exchange": "gossip", **CONVEX},
    "held out": {"algorithm": "flix", **CONVEX, "evaluation.validation_fraction": 0.3},
    "single precision": {"algorithm": "flix", "algorithm.l2": 0.1, "algorithm.step": 0.5},
    "dcgd": {"algorithm": "dcgd", **CONVEX, **RAND_K},
    "diana": {"algorithm": "diana", **CONVEX, **RAND_K},
    "dcgd of some": {
        "algorithm": "dcgd",
        **CONVEX,
        **SOME,
        "compression": {"name": "bernoulli", "inner": "natural"},
    },
    "diana of some": {
        "algorithm": "diana",
        **CONVEX,
        "participation": {"name": "bernoulli", "p": 0.5},
        "compression": "quantise",
        "algorithm.memory_start": "gradients",
    },
    "diana of few": {"algorithm": "diana", **CONVEX, **RAND_K, "participation": 0.3},
    "error feedback": {
        "algorithm": "flix",
        **CONVEX,
        **SOME,
        "compression": {"name": "top_k", "k": 5},
    },
    "stochastic": {"algorithm": "flix", **CONVEX, "algorithm.gradient": "stochastic"},
    "network": {
        "algorithm": "flix",
        "model": {"name": "mlp", "hidden": [5], "activation": "tanh", "initial": "normal"},
        "algorithm.step": "line_search",
        "algorithm.stop_at": 1e-3,
        "algorithm.local_iterations": 20,
    },
    "network by SGD": {
        "algorithm": "flix",
        "model": {"name": "mlp", "hidden": [5], "activation": "tanh", "initial": "normal"},
        "algorithm.step": "line_search",
        "algorithm.stop_at": 1e-1,
        "algorithm.stop_rule": "published_code",
        "algorithm.local_solver": "published_code",
        "algorithm.local_iterations": 30,
        "evaluation.validation_fraction": 0.2,
    },
    "purely local": {"algorithm": "diana", **CONVEX, **RAND_K, "algorithm.flix_alpha": 0},
    "unregularised": {"algorithm": "flix", **CONVEX, "algorithm.l2": 0.0},
    "lbfgs": {"algorithm": "flix", **CONVEX, "algorithm.local_solver": "lbfgs"},
    "fomaml": {"algorithm": "fomaml", **SOME},
    "maml": {"algorithm": "maml", "model": {"name": "mlp", "hidden": [5], "activation": "tanh"}},
    "linear maml": {"algorithm": "maml", "dtype": "float64", "evaluation.unseen_fraction": 0.3},
    "reptile": {"algorithm": "reptile", "exchange": "gossip", **SOME},
    "compressed reptile": {"algorithm": "reptile", **SOME, **RAND_K},
}
RESUMED = ("diana of some", "error feedback", "network", "compressed reptile")


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_a_run_is_the_same_on_these_ranks_as_on_one(case, tmp_path):
    assert unlike_one_rank({**SMALL, **CASES[case]}, tmp_path) == []


@pytest.mark.mpi
@pytest.mark.parametrize("case", RESUMED)
def test_a_run_resumed_on_these_ranks_is_the_uninterrupted_one(case, tmp_path):
    assert same_after_a_resume({**SMALL, **CASES[case]}, tmp_path)
