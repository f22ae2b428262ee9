"""What pages of the FedEM paper show beside their table, as Markdown made of the runs by row."""

from __future__ import annotations

import numpy as np

from mpifed.reproduce.studies import Runs
from mpifed.results.configurations import read_stored
from mpifed.results.results import read_clients, read_metrics


def growth(runs: Runs) -> str:
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


def entropies(runs: Runs) -> str:
    """Return the mean entropy of mixtures, of clients in training and of unseen ones (App. J.3)."""
    import torch

    from mpifed.algorithms.fedem import expectation

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


def recovered(runs: Runs) -> str:
    """Return how well FedEM recovers clusters (App. J.4)."""
    from mpifed.api import load
    from mpifed.config.configuration import resolve
    from mpifed.data.sources.synthetic import Synthetic
    from mpifed.mpi.communicator import Alone
    from mpifed.theory.recovery import recovery

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


def likelihoods(runs: Runs) -> str:
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
