"""Where every method ends on two clients, f_i = a_i (x - c_i)^2 / 2, a = (1, 3), c = (0, 4).

Clients take five steps at the rate 0.1 where nothing else is said. In closed form, with
g_i = 1 - (1 - 0.1 a_i)^5, FedAvg ends at sum g_i c_i / sum g_i, the mean of risks at 3, and
penalised models of the clients at (a_i c_i + 2 w) / (a_i + 2)."""

from __future__ import annotations

import pytest
from convex import Run, gossip, two_quadratics

from mpifed.testing import find_item, names

FIVE = {"lr": 0.1, "epochs": 5}
ONE = {"lr": 0.1}
AVERAGE, POOLED, OWN = [2.680532285] * 2, [3.0] * 2, [0.0, 4.0]
NEAR_MEAN = [12 / 7, 24 / 7]
"""Minimisers of f_i + |x - xbar|^2, of whose mean xbar = 18 / 7."""
MIXED = 4 * (1 - 0.925**5) / (2 - 0.975**5 - 0.925**5)
"""Where FedAvg ends on f_i((x + c_i) / 2): its steps shrink each x - c_i by 1 - 0.1 a_i / 4."""
ENVELOPE = {"pfedme_lambda": 2.0, "pfedme_eta": 0.4, "inner_steps": 60}
META = {"inner_steps": 5, "inner_step": 0.1, "outer_step": 0.5}
EQUAL = 4 * 3**0.5 / (1 + 3**0.5)
"""Where both risks are equal."""


def tuned(w, steps):
    """What so many steps on a client's own risk make of w."""
    return [0.9**steps * w, 4 + 0.7**steps * (w - 4)]


METHODS = {
    "local": (FIVE, {}, 70, OWN),
    "fedavg": (FIVE, {}, 40, AVERAGE),
    "fedavg_ft": (FIVE, {"tune_epochs": 2}, 40, tuned(AVERAGE[0], 2)),
    "fedprox": (FIVE, {"mu": 2.0}, 40, [2.708022736] * 2),
    "scaffold": (FIVE, {}, 120, POOLED),
    "svrg": (FIVE, {}, 40, AVERAGE),
    "qffl": (FIVE, {"q": 0.0}, 40, AVERAGE),
    "agnostic": (None, {"deployed": "last"}, 300, [EQUAL] * 2),
    "mocha": (None, {"mocha_lambda": 1.0, "sigma_every": None, "sdca_fraction": 1.0}, 3, [0, 2.4]),
    "fedem": (FIVE, {"n_components": 1}, 40, AVERAGE),
    "fedgmm": (FIVE, {"n_components": 1, "n_gaussians": 1}, 40, AVERAGE),
    "clustered": (FIVE, {"eps1": 0.0}, 40, AVERAGE),
    "ifca": (FIVE, {"n_clusters": 1}, 40, AVERAGE),
    "fedper": (FIVE, {"head": []}, 40, AVERAGE),
    "fedrep": (FIVE, {"head": []}, 40, AVERAGE),
    "fedbabu": (FIVE, {"head": [], "tune_epochs": 2}, 40, tuned(AVERAGE[0], 2)),
    "lg_fedavg": (FIVE, {"head": ["*"]}, 40, AVERAGE),
    "fedfomo": (FIVE, {}, 60, OWN),
    "fedala": (FIVE, {"ala_share": 1.0, "ala_lr": 0.1}, 60, OWN),
    "flix": (None, {"flix_alpha": 0.5}, 60, [1.5, 3.5]),
    "dcgd": (None, {"flix_alpha": 0.5}, 60, [1.5, 3.5]),
    "diana": (None, {"flix_alpha": 0.5}, 60, [1.5, 3.5]),
    "flix_fedavg": (
        FIVE,
        {"flix_alpha": 0.5, "optimum_epochs": 250},
        80,
        [MIXED / 2, MIXED / 2 + 2],
    ),
    "scafflix": (None, {"flix_alpha": 0.5, "scafflix_p": 0.4}, 60, [1.5, 3.5]),
    "fomaml": (
        None,
        {**META, "outer_step": 1.0, "support_fraction": 1.0},
        40,
        tuned(1.842367772, 5),
    ),
    "maml": (None, {**META, "outer_step": 3.0, "support_fraction": 1.0}, 40, tuned(0.782080903, 5)),
    "reptile": (None, META, 60, tuned(AVERAGE[0], 5)),
    "fedadam": (FIVE, {"server_lr": 1.0, "beta1": 0.0, "beta2": 0.0, "tau": 1.0}, 80, AVERAGE),
    "ditto": (FIVE, {"ditto_lambda": 2.0}, 40, [2 * AVERAGE[0] / 3, (12 + 2 * AVERAGE[0]) / 5]),
    "apfl": ({"lr": 0.3}, {"apfl_alpha": 0.8}, 120, OWN),
    "pfedme": ({"lr": 0.2}, ENVELOPE, 50, NEAR_MEAN),
    "l2sgd": (ONE, {"l2gd_p": 0.3, "l2gd_lambda": 2.0}, 100, NEAR_MEAN),
    "kgt": (FIVE, {}, 100, POOLED),
    "scaffnew": (ONE, {"scaffnew_p": 0.4}, 150, POOLED),
    "feddyn": (FIVE, {"feddyn_alpha": 1.0}, 120, POOLED),
    "fednova": (FIVE, {}, 40, AVERAGE),
    "moon": (FIVE, {}, 40, AVERAGE),
    "fedpd": (FIVE, {}, 120, POOLED),
    "fedspd": (FIVE, {"n_clusters": 1, "tune_epochs": 2}, 40, tuned(AVERAGE[0], 2)),
    "d_admm": (FIVE, {"admm_c": 1.0}, 60, POOLED),
    "fedlt": (FIVE, {}, 60, POOLED),
    "pfeddst": (FIVE, {"head": []}, 40, tuned(AVERAGE[0], 5)),
    "streaming_diloco": (FIVE, {"outer_momentum": 0.5}, 60, AVERAGE),
}
"""Options of ``local`` and of the method, rounds, and what the two clients deploy."""

ELSEWHERE = {
    "l2gd": "hovers around the minimum, so that its mean over time is tested",
    "fedbn": "is for networks with normalisation",
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_ends_in_its_closed_form(name):
    local, options, rounds, expected = METHODS[name]
    gossips = find_item("algorithm", name).exchanges == ("gossip",)
    exchange = gossip(topology="complete") if gossips else "server"
    run = Run(name, two_quadratics(), local=local, exchange=exchange, **options)
    assert run.go(rounds).models()[:, 0] == pytest.approx(expected, rel=1e-8, abs=1e-8)


def test_every_method_that_learns_regressions_is_among_them():
    kinds = {name: find_item("algorithm", name) for name in names("algorithms")}
    learn = {n for n, kind in kinds.items() if kind.uses_model() and "regression" in kind.tasks}
    assert learn - {*ELSEWHERE, "fedmm_ot"} == {*METHODS}
