"""Small runs of every method: what each needs, and which exchanges and options it goes with."""

from __future__ import annotations

import pytest

from mpifed.errors import InputError
from mpifed.testing import find_item, names, run_rounds

PLAIN = {
    "clients": 4,
    "rounds": 3,
    "data": {"name": "synthetic", "n_test": 20, "dimension": 6, "seed": 20},  # few samples
    "local": {"batch_size": 16, "momentum": 0.9},
    "evaluation": {"every": 2},
}
UNLABELLED = {"data": {"name": "dictionary", "dim": 4, "atoms": 3, "samples": 12}, "local": {}}
DEEP = {"model": {"name": "mlp", "hidden": [5]}}
OWN = {
    "clustered": {"algorithm": {"eps1": 100.0, "eps2": 1e-3, "warm_up": 1}},
    "fedper": DEEP,
    "fedrep": DEEP,
    "fedbabu": DEEP,
    "lg_fedavg": DEEP,
    "moon": DEEP,
    "fedproto": DEEP,
    "fedpac": DEEP,
    "pfeddst": DEEP,
    "fedbn": {"model": "network_modules:normalised_mlp"},
    "scaffold": {"local": {"batch_size": 16}},
    "fednova": {"local": {"batch_size": 16, "momentum": 0.9, "reset_momentum": True}},
    "kgt": {"local": {"batch_size": 16}},
    "fedspd": {"local": {"batch_size": 16}},
    "scaffnew": {"local": {"batch_size": 16}},
    "fedmm": UNLABELLED,
    "fedmm_theta": {**UNLABELLED, "data": "poisson", "algorithm": {"surrogate": "poisson"}},
    "sa_ssmm": {**UNLABELLED, "clients": 1},
    "fedmgs": UNLABELLED,
    "fedmm_ot": {
        "data": {"name": "transport", "dimension": 2, "samples": 16},
        "model": {"name": "icnn", "hidden": [3, 3]},
        "local": {"batch_size": 8, "lr": 0.1},
        "algorithm": {"pretraining": 5, "conjugate_steps": 2},
    },
}
"""What an algorithm needs in place of ``PLAIN``."""


CHOOSE_OR_CORRECT = {"fedspd", "pfeddst", "kgt", "scaffnew", "d_admm"}
"""Methods that choose whom clients mix with under gossip, or correct it themselves."""

NEVER_CUT_SHORT = {
    *(
        "agnostic",
        "flix",
        "dcgd",
        "diana",
        "scafflix",
        "fomaml",
        "maml",
        "reptile",
        "fedmm",
        "fedmm_theta",
    ),
    *("sa_ssmm", "fedmgs", "fedmm_ot", "l2gd", "l2sgd", "scaffnew", "fedpd", "streaming_diloco"),
}
"""Methods whose clients take no local steps, or always all of them."""


def problem(name, exchange):
    own = {**PLAIN, **OWN.get(name, {})}
    own["algorithm"] = {"name": name, **own.get("algorithm", {})}
    return {**own, "exchange": exchange}


def goes_with(name, exchange):
    return exchange in (find_item("algorithm", name).exchanges or ("server", "gossip"))


def mixes_as_given(name):
    return goes_with(name, "gossip") and name not in CHOOSE_OR_CORRECT


CASES = [
    pytest.param(name, exchange, id=f"{name}-{exchange}")
    for name in names("algorithms")
    for exchange in ("server", "gossip")
    if goes_with(name, exchange)
]


def rounds_of(name, exchange="server", rounds=0, **keys):
    """Rounds of a method on the data that it needs."""
    mapping = {**problem(name, exchange), **keys}
    del mapping["rounds"]
    method, data = mapping.pop("algorithm"), mapping.pop("data")
    return run_rounds(method, data, rounds=rounds, **mapping)


def refused(name, exchange="server", **keys):
    try:
        rounds_of(name, exchange, **keys)
    except InputError:
        return True
    return False
