"""The methods of Table 2 of Marfoq et al. 2021 on real data, with networks, 20 % of clients
unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mpifed.reproduce import methods
from mpifed.reproduce.study import Entry, Table

PARTS = (
    Entry("FedPer", {"algorithm": "fedper"}),
    Entry("FedRep", {"algorithm": "fedrep"}),
    Entry("FedBABU", {"algorithm": "fedbabu"}),
)
FEDBN = Entry("FedBN", {"algorithm": "fedbn"})
# Rows of Table 2 that train no such network.
WHOLE = tuple(row.label for row in (methods.MOCHA, methods.AFL, methods.L2SGD))

# Local serves no unseen client: all of them train.
ALONE = replace(
    methods.LOCAL, overrides={**methods.LOCAL.overrides, "evaluation.unseen_fraction": 0.0}
)

TRAIN = (row for row in (*methods.PAPER[1:], *methods.FIELD) if row.label not in WHOLE)
ROWS = (ALONE, *TRAIN, *PARTS)

COMMON: Mapping[str, Any] = {
    "evaluation.every": 1_000_000,
    "evaluation.unseen_fraction": 0.2,
    "checkpoint.every": 20,
}

# Training of the paper, for data sets of which no experiment has its setting.
OF_FEDEM = {"local.lr_schedule": "multi_step", "local.momentum": 0.9, "local.weight_decay": 5e-4}

# Average and bottom decile in Table 2, by label of the row.
PUBLISHED: Mapping[str, Mapping[str, tuple[float, ...]]] = {
    "femnist": {
        "Local": (71.0, 57.5),
        "FedAvg": (78.6, 63.9),
        "FedProx": (78.9, 64.0),
        "FedAvg+": (75.3, 53.0),
        "Clustered FL": (73.5, 55.1),
        "pFedMe, as in FedEM's code": (74.9, 57.6),
        "FedEM": (79.9, 64.8),
    },
    "emnist": {
        "Local": (71.9, 64.3),
        "FedAvg": (82.6, 75.0),
        "FedProx": (83.0, 75.4),
        "FedAvg+": (83.1, 75.8),
        "Clustered FL": (82.7, 75.0),
        "pFedMe, as in FedEM's code": (83.3, 76.4),
        "FedEM": (83.5, 76.6),
    },
    "cifar10": {
        "Local": (70.2, 48.7),
        "FedAvg": (78.2, 72.4),
        "FedProx": (78.0, 70.8),
        "FedAvg+": (82.3, 70.6),
        "Clustered FL": (78.6, 71.2),
        "pFedMe, as in FedEM's code": (81.7, 73.6),
        "FedEM": (84.3, 78.1),
    },
    "cifar100": {
        "Local": (31.5, 19.9),
        "FedAvg": (40.9, 33.2),
        "FedProx": (41.0, 33.2),
        "FedAvg+": (39.0, 28.3),
        "Clustered FL": (41.5, 34.1),
        "pFedMe, as in FedEM's code": (41.8, 32.5),
        "FedEM": (44.1, 35.0),
    },
    "shakespeare": {
        "Local": (32.0, 16.6),
        "FedAvg": (46.7, 42.8),
        "FedProx": (45.7, 41.9),
        "FedAvg+": (40.0, 25.5),
        "Clustered FL": (46.6, 42.7),
        "pFedMe, as in FedEM's code": (41.2, 36.8),
        "FedEM": (46.7, 43.0),
    },
}


def table(
    name: str,
    title: str,
    remarks: tuple[str, ...],
    experiment: str | None = None,
    rows: tuple[Entry, ...] = ROWS,
    **overrides: Any,
) -> Table:
    """Return the table of a data set."""
    keys = {key.replace("__", "."): value for key, value in overrides.items()}
    if experiment is not None:
        keys = {"data": name, **OF_FEDEM, **keys}
    published = PUBLISHED.get(name, {})
    entries = tuple(
        replace(row, published=published.get(row.label, ()), tuning_rounds=None) for row in rows
    )
    return Table(
        f"real-{name}",
        title,
        {name: (experiment or f"{name}-fedem", keys)},
        entries,
        ("average", "p10", "unseen", "bits", "seconds"),
        COMMON,
        remarks=(*remarks, methods.WITHOUT_VALIDATION),
    )


# One table for each data set.
TABLES = (
    table(
        "mnist",
        "MNIST, CNN",
        ("The paper has no MNIST. Partition and network are those it has for EMNIST.",),
        "mnist-fedem",
        data__partition="dirichlet",
        data__dirichlet_alpha=0.4,
        data__fraction=0.1,
        model="cnn",
        clients=100,
        rounds=100,
    ),
    table(
        "emnist", "EMNIST, CNN", ("The paper has 10 % of the data, 100 clients and 200 rounds.",)
    ),
    table(
        "femnist",
        "FEMNIST, CNN",
        ("The paper has 15 % of the writers, 539 clients and 200 rounds.",),
    ),
    table(
        "omniglot",
        "Omniglot by drawer, CNN",
        ("In place of FEMNIST: each drawer is a client.",),
        "mnist-fedem",
        data__size=28,
        model="cnn",
        clients=40,
        rounds=100,
    ),
    table(
        "cifar10",
        "CIFAR-10, MobileNet-v2",
        ("The paper has all 60,000 pictures and 200 rounds.",),
        rows=(*ROWS, FEDBN),
        rounds=20,
    ),
    table(
        "cifar100",
        "CIFAR-100, MobileNet-v2",
        ("The paper has all 60,000 pictures and 200 rounds.",),
        rows=(*ROWS, FEDBN),
        rounds=20,
    ),
    table(
        "shakespeare",
        "Shakespeare: roles with two speeches or more, LSTM",
        ("The paper has all plays, 778 roles, 200 characters and 80 rounds.",),
        data__sequence_length=80,
        data__fraction=0.1,
        clients=50,
        rounds=40,
    ),
)
