"""Majorise-minimise and transport methods: the same numbers on any ranks, and after a resume."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from commands import rows
from test_ranks import differences

from mpifed.api import Request, execute
from mpifed.communicator import Alone, world

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
    "fedmm, some take part": (DICTIONARY, {"participation": 0.4, "compression": "rand_k"}),
    "fedmm, whole shards": (DICTIONARY, {"algorithm.batch": None}),
    "fedmm, online": (DICTIONARY, {"algorithm.online": True, "data.variant": "homogeneous"}),
    "fedmm, mixture": (
        DICTIONARY,
        {"data": "gaussian_mixture", "algorithm.surrogate": MIXTURE, **QUANTISED},
    ),
    "fedmm by gossip": (DICTIONARY, {"exchange": "gossip", "participation": 0.7}),
    "fedmm by compressed gossip": (DICTIONARY, {"exchange": "gossip", "compression": "quantise"}),
    "fedmm_theta": (DICTIONARY, {"algorithm.name": "fedmm_theta", **QUANTISED}),
    "fedmm_theta by gossip": (
        DICTIONARY,
        {"algorithm.name": "fedmm_theta", "exchange": "gossip"},
    ),
    "sa_ssmm": (DICTIONARY, {"algorithm.name": "sa_ssmm", "clients": 1}),
    "fedmgs": (DICTIONARY, {"algorithm": {"name": "fedmgs", "n_atoms": 4, "senders": 3}}),
    "fedmm_ot": (
        TRANSPORT,
        {"algorithm": "fedmm_ot", "participation": BERNOULLI, **VARIATES, **PRETRAINED},
    ),
    "fedmm_ot, quantised": (
        TRANSPORT,
        {"algorithm": "fedmm_ot", "compression": "quantise", **PRETRAINED},
    ),
    "fedadam": (
        TRANSPORT,
        {"algorithm": "fedadam", "participation": 0.6, "local": {"batch_size": 32}, **PRETRAINED},
    ),
}


def written(case: str, folder: Path) -> str:
    """The experiment of ``case`` as a file, so that it is built on nothing shipped."""
    base, _ = CASES[case]
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(base))
    return str(path)


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_a_run_is_the_same_on_these_ranks_as_on_one_and_resumes_there(case, tmp_path):
    communicator = world()
    folder = Path(communicator.broadcast_object(str(tmp_path)))
    overrides = CASES[case][1]
    if communicator.rank == 0:
        experiment = written(case, folder)
        execute(Request(experiment, overrides, folder / "one", quiet=True), Alone(), never)
        half = Request(experiment, {**overrides, "rounds": 3}, folder / "cut", quiet=True)
        execute(half, Alone(), never)
    communicator.barrier()
    experiment = str(folder / "small.yaml")
    execute(Request(experiment, overrides, folder / "many", quiet=True), communicator, never)
    rest = Request(experiment, overrides, folder / "cut", resume=True, quiet=True)
    execute(rest, communicator, never)
    found = None
    if communicator.rank == 0:
        found = differences(folder / "many", folder / "one")
        found += [] if rows(folder / "cut") == rows(folder / "one") else ["after a resume"]
    assert communicator.broadcast_object(found) == []


def never() -> bool:
    """Nobody asks to stop."""
    return False
