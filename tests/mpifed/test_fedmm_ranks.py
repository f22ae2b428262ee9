"""Majorise-minimise and transport methods: the same numbers on any ranks, and after a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from on_ranks import folder_of, unlike_one_rank_though_resumed

from mpifed.testing import world

DICTIONARY = {
    "clients": 7,
    "rounds": 4,
    "dtype": "float64",
    "data": {"name": "dictionary", "samples": 140, "dim": 6, "atoms": 4},
    "algorithm": {
        "name": "fedmm",
        "surrogate": {"name": "dictionary", "n_atoms": 4},
        "batch": 9,
        "step_rule": "constant",
        "step": 0.3,
    },
    "evaluation": {"every": 2},
    "checkpoint": {"every": 2},
}
MIXTURE = {"name": "gaussian_mixture", "components": 3}
MEANS = {"name": "gaussian_mixture", "n_test": 30}
TRANSPORT = {
    "clients": 5,
    "rounds": 4,
    "data": {"name": "transport", "benchmark": "gaussian", "dimension": 2, "samples": 40},
    "model": {"name": "icnn", "hidden": [8, 8]},
    "local": {"batch_size": 32, "lr": 0.01, "steps": 2},
    "evaluation": {"every": 2},
    "checkpoint": {"every": 2},
}
BERNOULLI = {"name": "bernoulli", "p": 0.5}
QUANTISED = {"participation": BERNOULLI, "compression": "quantise"}
VARIATES = {"algorithm.control_variate_rate": 0.3}
PRETRAINED = {"algorithm.pretraining": 20}
CASES = {
    "fedmm": (DICTIONARY, {**QUANTISED, **VARIATES}),
    "fedmm, whole shards": (DICTIONARY, {"algorithm.batch": None}),
    "fedmm, samples that fill no tile of a kernel": (
        DICTIONARY,
        {"data.samples": 700, "algorithm.surrogate.n_atoms": 12, "algorithm.batch": 41},
    ),
    "fedmm, online": (DICTIONARY, {"algorithm.online": True, "data.variant": "homogeneous"}),
    "fedmm, mixture": (
        DICTIONARY,
        {"data": MEANS, "algorithm.surrogate": MIXTURE, **QUANTISED},
    ),
    "fedmm, counts of a measured mean": (
        DICTIONARY,
        {
            "data": "poisson",
            "algorithm.surrogate": {"name": "poisson", "mean": "measured"},
            "algorithm.client_weights": "samples",
        },
    ),
    "fedmm, regression with a measured rho": (
        DICTIONARY,
        {
            "data": {"name": "digits", "min_samples": 12},
            "algorithm.surrogate": {"name": "quadratic"},
            **QUANTISED,
        },
    ),
    "fedmm by compressed gossip": (DICTIONARY, {"exchange": "gossip", "compression": "quantise"}),
    "fedmm by gossip, weighted by samples": (
        DICTIONARY,
        {
            "data": {"name": "digits", "min_samples": 12},
            "algorithm.surrogate": MIXTURE,
            "algorithm.client_weights": "samples",
            "exchange": "gossip",
        },
    ),
    "fedmm_theta": (DICTIONARY, {"algorithm.name": "fedmm_theta", **QUANTISED}),
    "fedmgs": (DICTIONARY, {"algorithm": {"name": "fedmgs", "n_atoms": 4, "senders": 3}}),
    "fedmm_ot": (
        TRANSPORT,
        {"algorithm": "fedmm_ot", "participation": BERNOULLI, **VARIATES, **PRETRAINED},
    ),
    "fedmm_ot, quantised and with falling steps": (
        TRANSPORT,
        {
            "algorithm": "fedmm_ot",
            "algorithm.step_rule": "inverse_kept",
            "compression": "quantise",
            **PRETRAINED,
        },
    ),
    "fedadam": (
        TRANSPORT,
        {
            "algorithm": "fedadam",
            "participation": 0.6,
            "local": {"lr": 0.1, "steps": None},
            **PRETRAINED,
        },
    ),
}


def written(case: str, tmp_path: Path) -> str:
    """The experiment of ``case`` as a file, so that it is built on nothing shipped."""
    path = folder_of(tmp_path) / "small.yaml"
    if world().rank == 0:
        path.write_text(yaml.safe_dump(CASES[case][0]))
    world().barrier()
    return str(path)


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_files_depend_neither_on_ranks_nor_on_resumes(case, tmp_path):
    experiment, overrides = written(case, tmp_path), CASES[case][1]
    assert unlike_one_rank_though_resumed(overrides, tmp_path, experiment) == []
