"""The methods of Table 2 of Marfoq et al. 2021 and of later papers, as rows on linear models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mpifed.reproduce.study import Entry
from mpifed.reproduce.tuning import LEARNING_RATES, PENALTIES

PLAIN_SGD = {"local.momentum": 0.0}
LARGE_RATES = LEARNING_RATES[:3]
FEDEM = {"algorithm": "fedem", "algorithm.mixture_init": "uniform"}

LOCAL = Entry("Local", {"algorithm": "local"}, (65.7, 58.4))
FEDAVG = Entry("FedAvg", {"algorithm": "fedavg"}, (68.2, 58.9))
FEDPROX = Entry("FedProx", {"algorithm": "fedprox"}, (68.2, 59.0), grid={"algorithm.mu": PENALTIES})
FEDAVG_FT = Entry("FedAvg+", {"algorithm": "fedavg_ft"}, (68.9, 60.2))
PFEDME = Entry(
    "pFedMe, as in FedEM's code",
    {
        "algorithm": "pfedme",
        "algorithm.pfedme_variant": "prox_to_average",
        "algorithm.client_weights": "samples",
        **PLAIN_SGD,
    },
    (69.2, 61.2),
    grid={"algorithm.pfedme_lambda": PENALTIES},
)
CLUSTERED = Entry("Clustered FL", {"algorithm": "clustered"}, (69.1, 59.0))
MOREAU = Entry(
    "pFedMe",
    {
        "algorithm": "pfedme",
        "algorithm.pfedme_eta": 0.05,
        "algorithm.client_weights": "samples",
        **PLAIN_SGD,
    },
    grid={"algorithm.pfedme_lambda": (1.0, 5.0, 15.0)},
)
MOCHA = Entry(
    "MOCHA",
    {"algorithm": "mocha"},
    (73.4,),
    grid={"algorithm.mocha_lambda": PENALTIES, "algorithm.sigma_every": (20, 100)},
    learning_rates=False,
)
FEDEM_ROW = Entry("FedEM", FEDEM, (74.7, 66.7))
APFL = Entry(
    "APFL",
    {"algorithm": "apfl", "algorithm.client_weights": "samples"},
    grid={"algorithm.apfl_alpha": (0.25, 0.5, 0.75)},
)
DITTO = Entry("Ditto", {"algorithm": "ditto"}, grid={"algorithm.ditto_lambda": (0.01, 0.1, 1.0)})
SCAFFOLD = Entry("SCAFFOLD", {"algorithm": "scaffold", **PLAIN_SGD})
QFFL = Entry("q-FFL", {"algorithm": "qffl"}, grid={"algorithm.q": (0.1, 1.0)})
AFL = Entry(
    "AFL",
    {"algorithm": "agnostic"},
    grid={"algorithm.gamma_w": (1.0, 0.316, 0.1)},
    learning_rates=False,
)
L2GD = Entry(
    "L2GD",
    {"algorithm": "l2gd", "algorithm.l2gd_gradients": "minibatch", **PLAIN_SGD},
    grid={"algorithm.l2gd_lambda": (0.01, 0.1)},
)
L2SGD = Entry(
    "L2SGD+", {"algorithm": "l2sgd", **PLAIN_SGD}, grid={"algorithm.l2gd_lambda": (0.01, 0.1)}
)

IFCA = Entry("IFCA, 3 models", {"algorithm": "ifca", "algorithm.n_clusters": 3})
FEDGMM = Entry("FedGMM", {"algorithm": "fedgmm"})
FEDALA = Entry("FedALA", {"algorithm": "fedala"})
FEDROD = Entry("FedRoD", {"algorithm": "fedrod"})
KNN_PER = Entry("kNN-Per", {"algorithm": "knn_per"}, tuned_as="FedAvg")
WITHOUT_VALIDATION = (
    "kNN-Per mixes with lambda = 0.5 for all clients: runs hold out no samples to choose it by."
)

# The rows that the paper has.
PAPER = (LOCAL, FEDAVG, FEDPROX, FEDAVG_FT, CLUSTERED, PFEDME, MOCHA, FEDEM_ROW)


def _with_rates(row: Entry) -> Mapping[str, Sequence[float]]:
    return {"local.lr": LARGE_RATES, **row.grid} if row.learning_rates else row.grid


# What the field compares with beside these.
FIELD = tuple(
    replace(row, tuning_rounds=60, grid=_with_rates(row))
    for row in (
        *(MOREAU, APFL, DITTO, SCAFFOLD, QFFL, AFL, L2GD, L2SGD),
        *(IFCA, FEDGMM, FEDALA, FEDROD, KNN_PER),
    )
)
