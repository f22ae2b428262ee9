"""Runs of the baselines: on any ranks, with absent, late and unseen clients, and compressed."""

from __future__ import annotations

import pytest
from on_ranks import SMALL, same_after_a_resume, unlike_one_rank

LATE = {"name": "stragglers", "rate": 0.6, "late": "partial"}
PLAIN = {**SMALL, "local.momentum": 0.0}
LAYERS = {
    "model": {"name": "mlp", "hidden": [5]},
    "participation": LATE,
    "evaluation.unseen_fraction": 0.3,
}
CASES = {
    "fedprox": {"algorithm": {"name": "fedprox", "mu": 0.5}, "participation": LATE},
    "fedprox and yogi": {
        "algorithm": "fedprox",
        "server_optimizer": "yogi",
        "participation": LATE,
        "compression": {"name": "top_k", "k": 3},
    },
    "fedbn and adam": {
        "algorithm": "fedbn",
        **LAYERS,
        "model": "network_modules:normalised_mlp",
        "server_optimizer": {"name": "adam", "bias_correction": True},
    },
    "scaffold": {
        "algorithm": {"name": "scaffold", "variate_option": "I", "server_lr": 0.8},
        "server_optimizer": "nesterov",
        "participation": 0.5,
        "evaluation.unseen_fraction": 0.3,
    },
    "qffl": {
        "algorithm": {"name": "qffl", "q": 2.0},
        "participation": LATE,
        "compression": "quantise",
        "evaluation.unseen_fraction": 0.3,
    },
    "agnostic": {
        "algorithm": {"name": "agnostic", "gamma_lambda": 0.5},
        "participation": 0.5,
        "compression": "rand_k",
        "evaluation.unseen_fraction": 0.3,
    },
    "feddyn": {
        "algorithm": {"name": "feddyn", "feddyn_alpha": 0.5},
        "participation": LATE,
        "evaluation.unseen_fraction": 0.3,
    },
    "svrg": {
        "algorithm": {"name": "svrg", "anchor_rounds": 2},
        "participation": 0.5,
        "evaluation.unseen_fraction": 0.3,
    },
    "fednova": {
        "algorithm": "fednova",
        "server_optimizer": "momentum",
        "participation": LATE,
        "compression": {"name": "top_k", "k": 3},
        "evaluation.unseen_fraction": 0.3,
    },
    "moon": {
        "algorithm": {"name": "moon", "moon_mu": 2.0},
        **LAYERS,
        "model": "network_modules:normalised_mlp",
        "local.momentum": 0.5,
    },
    "moon by gossip": {"algorithm": "moon", **LAYERS, "exchange": "gossip"},
    "fedpd": {
        "algorithm": {"name": "fedpd", "fedpd_p": 0.5},
        "evaluation.unseen_fraction": 0.3,
    },
    "mocha": {"algorithm": {"name": "mocha", "sigma_every": 2}, "participation": LATE},
    "ditto": {
        "algorithm": {"name": "ditto", "personal_epochs": 2},
        "participation": LATE,
        "compression": "quantise",
        "evaluation.unseen_fraction": 0.3,
    },
    "apfl": {
        "algorithm": {"name": "apfl", "apfl_adaptive": True},
        "participation": LATE,
        "evaluation.unseen_fraction": 0.3,
        "local.momentum": 0.5,
    },
    "pfedme": {
        "algorithm": {"name": "pfedme", "pfedme_lambda": 1.0, "inner_steps": 2, "beta": 1.5},
        "participation": LATE,
        "local.stepping": "one_by_one",
        "evaluation.unseen_fraction": 0.3,
    },
    "l2gd": {
        "algorithm": {"name": "l2gd", "l2gd_gradients": "minibatch", "l2gd_p": 0.3},
        "participation": 0.5,
        "compression": {"name": "top_k", "k": 3},
        "evaluation.unseen_fraction": 0.3,
    },
    "l2sgd": {
        "algorithm": {"name": "l2sgd", "l2gd_p": 0.5},
        "participation": 0.5,
        "compression": {"name": "top_k", "k": 3},
        "local.batch_size": 8,
    },
    "clustered": {
        "algorithm": {"name": "clustered", "eps1": 100.0, "eps2": 1e-3, "warm_up": 1},
        "evaluation.unseen_fraction": 0.3,
    },
    "ifca": {
        "algorithm": {"name": "ifca", "n_clusters": 2, "averaging": "gradients"},
        "participation": LATE,
        "evaluation.unseen_fraction": 0.3,
    },
    "fedgmm": {
        "algorithm": {"name": "fedgmm", "n_gaussians": 2, "n_components": 2},
        "participation": LATE,
        "compression": "quantise",
        "evaluation.unseen_fraction": 0.3,
    },
    "fedper": {"algorithm": {"name": "fedper", "head_init": "per_client"}, **LAYERS},
    "fedrep": {"algorithm": {"name": "fedrep", "head_epochs": 2}, **LAYERS},
    "fedbabu": {"algorithm": {"name": "fedbabu", "tune_epochs": 2}, **LAYERS},
    "fedbn": {"algorithm": "fedbn", **LAYERS, "model": "network_modules:normalised_mlp"},
    "lg_fedavg": {"algorithm": "lg_fedavg", **LAYERS},
    "fedpac": {
        "algorithm": {"name": "fedpac", "fedpac_lambda": 0.5},
        **LAYERS,
        "model": "network_modules:normalised_mlp",
    },
    "fedala": {"algorithm": {"name": "fedala", "first_epochs": 2}, **LAYERS},
    "fedproto": {
        "algorithm": {"name": "fedproto", "fedproto_lambda": 0.5},
        "model": "network_modules:normalised_mlp",
        "participation": LATE,
        "local.momentum": 0.5,
    },
    "fedfomo": {
        "algorithm": {"name": "fedfomo", "fomo_models": 2},
        "participation": LATE,
        "evaluation.validation_fraction": 0.2,
    },
    "knn_per": {
        "algorithm": "knn_per",
        **LAYERS,
        "evaluation.validation_fraction": 0.2,
    },
    "fedrod": {"algorithm": "fedrod", **LAYERS},
    "fedrod_hyper": {"algorithm": {"name": "fedrod_hyper", "hyper_width": 3}, **LAYERS},
    "kgt": {
        "algorithm": {"name": "kgt", "eta_s": 0.9},
        "exchange": "gossip",
        "participation": LATE,
        "evaluation.unseen_fraction": 0.3,
    },
    "scaffnew": {
        "algorithm": {"name": "scaffnew", "scaffnew_p": 0.4},
        "participation": 0.5,
        "evaluation.unseen_fraction": 0.3,
    },
    "scaffnew by gossip": {
        "algorithm": {"name": "scaffnew", "scaffnew_p": 0.4},
        "exchange": "gossip",
        "evaluation.unseen_fraction": 0.3,
    },
    "fedspd": {
        "algorithm": {"name": "fedspd", "n_clusters": 2},
        "exchange": "gossip",
        "local.momentum": 0.0,
        "participation": LATE,
        "evaluation.unseen_fraction": 0.3,
    },
    "d_admm": {
        "algorithm": {"name": "d_admm", "admm_c": 0.5},
        "exchange": "gossip",
        "participation": LATE,
        "evaluation.unseen_fraction": 0.3,
    },
    "fedlt": {
        "algorithm": {"name": "fedlt", "fedlt_rho": 0.5},
        **LAYERS,
        "model": "network_modules:normalised_mlp",
    },
    "fedlt and top_k": {
        "algorithm": "fedlt",
        "participation": 0.5,
        "compression": {"name": "top_k", "k": 3},
    },
    "pfeddst": {
        "algorithm": {"name": "pfeddst", "peers": 2, "head_epochs": 2},
        **LAYERS,
        "exchange": {"name": "gossip", "topology": "complete"},
    },
    "streaming_diloco": {
        "algorithm": "streaming_diloco",
        **LAYERS,
        "participation": 1.0,
        "model": "network_modules:normalised_mlp",
    },
}


def named(case):
    """The name of the algorithm of a case."""
    algorithm = CASES[case]["algorithm"]
    return algorithm if isinstance(algorithm, str) else algorithm["name"]


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_files_do_not_depend_on_the_number_of_ranks(case, tmp_path):
    assert unlike_one_rank({**PLAIN, **CASES[case]}, tmp_path) == []


@pytest.mark.mpi
@pytest.mark.parametrize("case", CASES)
def test_a_resumed_run_is_the_uninterrupted_one(case, tmp_path):
    assert same_after_a_resume({**PLAIN, **CASES[case]}, tmp_path, rounds=5)
