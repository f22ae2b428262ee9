"""What pages of the FedEM paper show beside their table, as Markdown made of the runs by row."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy.special import entr

from mpifed.report.tables import Table
from mpifed.reproduce.experiments.studies import Planned, Runs
from mpifed.results.configurations import read_stored
from mpifed.results.recovery import recovery
from mpifed.results.results import read_clients, read_metrics


def growth(runs: Runs) -> str:
    """Return the accuracy of unseen clients by the share of their data (Figure 2)."""
    shares: list[float] = []
    accuracies: dict[str, list[np.ndarray]] = {}
    for label, run in _finished(runs):
        shares = run.overrides["evaluation.unseen_shares"]
        clients = read_clients(run.directory / "clients.h5").results
        unseen = clients["unseen"].astype(bool)
        accuracies.setdefault(label, []).append(clients["test_accuracy_by_share"][unseen].mean(0))
    rows = [
        [label, *(f"{100 * value:.2f}" for value in np.mean(seeds, 0))]
        for label, seeds in accuracies.items()
    ]
    return _table(["share of the data", *(f"{share:g}" for share in shares)], rows)


def entropies(runs: Runs) -> str:
    """Return the mean entropy of mixtures, of clients in training and of unseen ones (App. J.3)."""
    means: dict[str, list[list[float]]] = {}
    for label, run in _finished(runs):
        clients = read_clients(run.directory / "clients.h5").results
        if "mixture" in clients:
            unseen = clients["unseen"].astype(bool)
            values = entr(clients["mixture"].astype(float)).sum(1)
            both = [values[~unseen].mean(), values[unseen].mean() if unseen.any() else np.nan]
            means.setdefault(label, []).append(both)
    rows = [
        [label, *(f"{value:.2f}" for value in np.mean(seeds, 0))] for label, seeds in means.items()
    ]
    return _table(["entropy (nats)", "in training", "unseen"], rows)


def recovered(runs: Runs) -> str:
    """Return how well FedEM recovers clusters (App. J.4)."""
    from mpifed.api import load
    from mpifed.config.configuration import resolve
    from mpifed.mpi.communicator import Alone
    from mpifed.training.build import make_dataset

    rows = []
    for label, run in _finished(runs):
        configuration = resolve(read_stored(run.directory / "config.yaml"))
        clients = read_clients(run.directory / "clients.h5").results
        dataset: Any = make_dataset(configuration, Alone())
        truth = dataset.truth
        learnt = load(run.directory).components
        theta = np.stack([next(each.parameters()).detach().numpy().ravel() for each in learnt])
        agreement = recovery(theta, clients["mixture"], truth.components, truth.mixture)
        distances = f"{agreement.component_distance:.2g}", f"{agreement.mixture_distance:.2g}"
        rows.append(
            [label, str(run.overrides["seed"]), *distances, f"{100 * agreement.assigned:.1f} %"]
        )
    return _table(["", "seed", "distance of components", "distance of mixtures", "assigned"], rows)


def likelihoods(runs: Runs) -> str:
    """Return the training loss, bits and seconds of each seed: restarts and what they cost."""
    rows = []
    for label, run in _finished(runs):
        last = read_metrics(run.directory / "metrics.csv")
        names = ("train_loss", "test_accuracy", "seconds", "up_bits", "down_bits")
        loss, accuracy, seconds, up, down = (last.numbers(name)[-1] for name in names)
        cells = f"{loss:.4f}", f"{100 * accuracy:.2f}", f"{(up + down) / 1e9:.2f}", f"{seconds:.1f}"
        rows.append([label, str(run.overrides["seed"]), *cells])
    return _table(["", "seed", "training loss", "accuracy", "Gbit", "seconds"], rows)


def _finished(runs: Runs) -> Iterator[tuple[str, Planned]]:
    return ((label, run) for label, planned in runs.items() for run in planned if run.finished)


def _table(header: list[str], rows: list[list[str]]) -> str:
    return Table(header, rows, texts=1).markdown().rstrip()
