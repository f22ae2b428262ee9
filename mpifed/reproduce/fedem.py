"""The tables and figures of Marfoq et al. 2021, on the synthetic benchmark; ``real`` has real data.

Every kind of data is trained as the published code does (300 clients, minibatches of 128, one local
epoch, momentum 0.9, weight decay 5e-4, learning rates that fall at half and three quarters of the
rounds), with learning rates chosen on validation data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mpifed.algorithms.fedem import expectation
from mpifed.api import load
from mpifed.config.configuration import resolve
from mpifed.data.synthetic import Synthetic
from mpifed.mpi.communicator import Alone
from mpifed.reading.configurations import read_stored
from mpifed.reading.results import read_clients, read_metrics
from mpifed.reproduce import real
from mpifed.reproduce.methods import (
    APFL,
    FEDAVG,
    FEDAVG_FT,
    FEDEM,
    FEDEM_ROW,
    FEDPROX,
    FIELD,
    LOCAL,
    MOREAU,
    PAPER,
    PFEDME,
)
from mpifed.reproduce.study import Entry, Planned, Study, Table
from mpifed.theory.recovery import recovery

DATA_SEED = 12345
GOSSIP = {"exchange": "gossip", "algorithm.gossip_step_scale": "none"}

SYNTHETIC: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "paper": ("synthetic-released", {"data.variant": "paper", "data.seed": DATA_SEED}),
    "released": ("synthetic-released", {}),
}
"""The generator of the text and that of the published code, both with the same data in all runs."""

ENDS = {"evaluation.every": 1_000_000, "checkpoint.every": 100}


def growth(runs: Mapping[str, Sequence[Planned]]) -> str:
    """Return the accuracy of unseen clients by the share of their data (Figure 2)."""
    shares, lines = [], []
    for label, planned in runs.items():
        found = []
        for run in filter(lambda each: each.finished, planned):
            shares = run.overrides["evaluation.unseen_shares"]
            clients = read_clients(run.directory / "clients.h5").results
            unseen = clients["unseen"].astype(bool)
            found.append(clients["test_accuracy_by_share"][unseen].mean(0))
        if found:
            cells = " | ".join(f"{100 * value:.2f}" for value in np.mean(found, 0))
            lines.append(f"| {label} | {cells} |")
    heads = " | ".join(f"{share:g}" for share in shares)
    return "\n".join(
        [f"| share of the data | {heads} |", f"| --- |{' ---: |' * len(shares)}", *lines]
    )


def entropies(runs: Mapping[str, Sequence[Planned]]) -> str:
    """Return the mean entropy of mixtures, of clients in training and of unseen ones (App. J.3)."""
    lines = ["| entropy (nats) | in training | unseen |", "| --- | ---: | ---: |"]
    for label, planned in runs.items():
        found = []
        for run in filter(lambda each: each.finished, planned):
            clients = read_clients(run.directory / "clients.h5").results
            if "mixture" not in clients:
                continue
            unseen = clients["unseen"].astype(bool)
            own = expectation.entropies(torch.from_numpy(clients["mixture"])).numpy()
            found.append([own[~unseen].mean(), own[unseen].mean() if unseen.any() else np.nan])
        if found:
            seen, new = np.mean(found, 0)
            lines.append(f"| {label} | {seen:.2f} | {new:.2f} |")
    return "\n".join(lines)


def recovered(runs: Mapping[str, Sequence[Planned]]) -> str:
    """Return how well FedEM recovers clusters (App. J.4)."""
    lines = [
        "| | seed | distance of components | distance of mixtures | assigned |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    for label, planned in runs.items():
        for run in filter(lambda each: each.finished, planned):
            options = resolve(read_stored(run.directory / "config.yaml")).data.options
            clients = read_clients(run.directory / "clients.h5").results
            truth = Synthetic(len(clients["unseen"]), 0, Alone(), **options).truth
            learnt = load(run.directory).components
            theta = np.stack([next(each.parameters()).detach().numpy().ravel() for each in learnt])
            found = recovery(theta, clients["mixture"], truth.components, truth.mixture)
            lines.append(
                f"| {label} | {run.overrides['seed']} | {found.component_distance:.2g} | "
                f"{found.mixture_distance:.2g} | {100 * found.assigned:.1f} % |"
            )
    return "\n".join(lines)


def likelihoods(runs: Mapping[str, Sequence[Planned]]) -> str:
    """Return the training loss, bits and seconds of each seed: restarts and what they cost."""
    lines = ["| | seed | training loss | accuracy | Gbit | seconds |", f"| --- |{' ---: |' * 5}"]
    for label, planned in runs.items():
        for run in filter(lambda each: each.finished, planned):
            last = read_metrics(run.directory / "metrics.csv")
            at = {
                name: last.numbers(name)[-1] for name in ("train_loss", "test_accuracy", "seconds")
            }
            bits = sum(last.numbers(name)[-1] for name in ("up_bits", "down_bits")) / 1e9
            lines.append(
                f"| {label} | {run.overrides['seed']} | {at['train_loss']:.4f} | "
                f"{100 * at['test_accuracy']:.2f} | {bits:.2f} | {at['seconds']:.1f} |"
            )
    return "\n".join(lines)


def _renamed(entry: Entry, *published: float, **more: Any) -> Entry:
    return replace(entry, overrides={**entry.overrides, **more}, published=published)


UNSEEN = {"evaluation.unseen_fraction": 0.2}
SHARES = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
ONE_HOT = {
    "corrected": ("synthetic-released", {"data.variant": "corrected", "data.mixtures": "one_hot"})
}
CORRECTED = {"corrected": ("synthetic-released", {"data.variant": "corrected"})}

STUDIES: dict[str, Study] = {
    study.name: study
    for study in (
        Table(
            "table-2",
            "Table 2 of FedEM: test accuracy, synthetic data",
            SYNTHETIC,
            (*PAPER, *FIELD),
            ("average", "p10", "std", "weighted", "bits", "seconds"),
            ENDS,
        ),
        Table(
            "table-3",
            "Table 3 of FedEM: clients unseen in training, synthetic data",
            SYNTHETIC,
            (
                _renamed(FEDAVG, 68.6, 70.0),
                _renamed(FEDAVG_FT, 69.1, 72.1),
                replace(MOREAU, published=()),
                _renamed(FEDEM_ROW, 73.0, 74.1),
            ),
            ("unseen", "unseen_train", "average"),
            {**ENDS, **UNSEEN},
            extras=(entropies,),
        ),
        Table(
            "table-6",
            "Table 6 of FedEM: decentralised FedEM, synthetic data",
            SYNTHETIC,
            (
                _renamed(LOCAL, 65.7),
                _renamed(FEDAVG, 68.2),
                _renamed(FEDAVG_FT, 68.9),
                _renamed(PFEDME, 69.2),
                _renamed(FEDEM_ROW, 74.7),
                Entry("D-FedEM", {**FEDEM, **GOSSIP}, (73.8,)),
            ),
            ("average", "weighted", "p10"),
            ENDS,
        ),
        Table(
            "table-7",
            "Table 7 of FedEM: FedEM with a third of the rounds, synthetic data",
            SYNTHETIC,
            (
                _renamed(LOCAL, 65.7, 91.0),
                _renamed(FEDAVG, 68.2, 68.7),
                _renamed(FEDPROX, 68.2, 68.7),
                _renamed(FEDAVG_FT, 68.9, 71.0),
                _renamed(PFEDME, 69.2, 72.8),
                Entry("FedEM, 66 rounds", {**FEDEM, "rounds": 66}, (73.2, 74.7)),
            ),
            ("average", "train", "p10"),
            ENDS,
        ),
        Table(
            "table-8",
            "Table 8 of FedEM: 20 % of the clients in each of 1200 rounds, synthetic data",
            SYNTHETIC,
            (
                _renamed(FEDAVG, 68.2),
                _renamed(FEDAVG_FT, 69.0),
                _renamed(PFEDME, 69.1),
                _renamed(APFL, 69.1),
                _renamed(FEDEM_ROW, 74.7),
            ),
            ("average", "p10", "std"),
            {**ENDS, "participation": 0.2, "rounds": 1200},
        ),
        Table(
            "figure-1-sampling",
            "Figure 1 of FedEM, left: sampling rates, on the synthetic data",
            SYNTHETIC,
            tuple(
                Entry(f"{label}, {rate:g}", {**method, "participation": rate})
                for label, method in (("FedAvg", {"algorithm": "fedavg"}), ("FedEM", FEDEM))
                for rate in (0.1, 0.2, 0.5, 1.0)
            ),
            ("average", "p10"),
            ENDS,
        ),
        Table(
            "figure-1-components",
            "Figure 1 of FedEM, right: number of components, on the synthetic data",
            SYNTHETIC,
            tuple(
                Entry(f"M = {m}", {**FEDEM, "algorithm.n_components": m}) for m in (1, 2, 3, 4, 6)
            ),
            ("average", "p10", "bits", "seconds"),
            ENDS,
        ),
        Table(
            "figure-2",
            "Figure 2 of FedEM: unseen clients that collect their data, on the synthetic data",
            SYNTHETIC,
            (FEDAVG, FEDAVG_FT, FEDEM_ROW),
            ("unseen",),
            {**ENDS, **UNSEEN, "evaluation.unseen_shares": SHARES},
            extras=(growth,),
        ),
        Table(
            "recovery",
            "Recovery of clusters by FedEM (App. J.4)",
            ONE_HOT,
            tuple(
                Entry(
                    f"M = {m}",
                    {
                        **FEDEM,
                        "data.n_components": m,
                        "algorithm.n_components": m,
                        "local.lr": 0.316,
                    },
                )
                for m in (2, 3)
            ),
            ("average", "p10"),
            {**ENDS, "data.seed": DATA_SEED},
            extras=(recovered,),
        ),
        Table(
            "restarts",
            "Restarts of FedEM, chosen by training likelihood",
            CORRECTED,
            (
                Entry("one beginning", FEDEM),
                Entry("best of 5, 20 rounds", {**FEDEM, "algorithm.restarts": 5}),
                Entry(
                    "best of 5, begun again",
                    {**FEDEM, "algorithm.restarts": 5, "algorithm.warm_start": False},
                ),
                Entry(
                    "best of 5, 60 rounds",
                    {**FEDEM, "algorithm.restarts": 5, "algorithm.restart_rounds": 60},
                ),
            ),
            ("average", "p10", "bits", "seconds"),
            {**ENDS, "data.seed": 0, "local.lr": 0.316},
            (0, 1, 2, 3, 4),
            extras=(likelihoods,),
        ),
        *real.TABLES,
    )
}
"""Every table and figure, by name."""
