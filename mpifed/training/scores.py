"""Scores of clients: for each client, on average, and at the bottom decile."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mpifed.algorithms.base import Predictor
from mpifed.algorithms.returned import check_predictor
from mpifed.config.configuration import ClientWeights
from mpifed.federation.clients import Clients, Federation
from mpifed.local.scoring import client_scores
from mpifed.models.base import Model
from mpifed.models.losses import likelihood_differs


@dataclass(frozen=True)
class ClientResults:
    """Scores and sample counts of all clients, in client order; NaN where none applies.

    Attributes
    ----------
    n_train, n_test : ndarray
        Samples of each split, int (n_clients,).
    train_loss, train_accuracy, test_loss, test_accuracy : ndarray
        Means over the samples of a split, float64 (n_clients,).
    unseen : ndarray
        Whether the client takes no part in training, bool (n_clients,).
    mixture : ndarray or None
        Weights of the models of each client, (n_clients, M), where predictors are mixtures.
    more : dict of str to ndarray
        What the task or the method adds, each (n_clients, ...).
    """

    n_train: np.ndarray
    n_test: np.ndarray
    train_loss: np.ndarray
    train_accuracy: np.ndarray
    test_loss: np.ndarray
    test_accuracy: np.ndarray
    unseen: np.ndarray
    mixture: np.ndarray | None = None
    more: dict[str, np.ndarray] = field(default_factory=dict)


def score_clients(
    federation: Federation,
    model: Model,
    served: list[tuple[Clients, Predictor]],
    validates: bool = False,
) -> ClientResults | None:
    """Score hosted clients on their training and test splits; collective.

    Parameters
    ----------
    federation : Federation
        All clients.
    model : Model
        The model whose parameters the predictors hold.
    served : list of (Clients, Predictor)
        Groups of hosted clients (those in training, those unseen) and what they deploy.
    validates : bool
        Whether validation splits are scored too.

    Returns
    -------
    ClientResults or None
        Those of all clients on rank 0; None elsewhere.

    Raises
    ------
    RunError
        For predictors of other shapes than are documented.
    """
    for clients, predictor in served:
        if len(clients):
            check_predictor(predictor, len(clients), model.n_parameters)
    parts = [
        _score(model, clients, predictor, validates)
        for clients, predictor in served
        if len(clients)
    ]
    gathered = federation.communicator.gather_object(parts)
    if gathered is None:
        return None
    every = [part for of_rank in gathered for part in of_rank]
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in every for name in part if name != "ids"):
        having = [part for part in every if part.get(name) is not None]
        if not having:
            continue
        first = having[0][name]
        shape = (federation.n_clients, *first.shape[1:])
        columns[name] = np.full(shape, np.nan) if first.dtype == float else np.zeros(shape, int)
        for part in having:
            columns[name][part["ids"]] = part[name]
    own = {name: columns.pop(name) for name in list(columns) if name in _FIELDS}
    return ClientResults(unseen=federation.unseen, **own, more=columns)


VALIDATION_COLUMNS = ["validation_loss", "validation_accuracy"]
"""The columns of ``metrics.csv`` where validation samples are scored."""

_FIELDS = set(ClientResults.__dataclass_fields__) - {"more"}


def _score(model: Model, clients: Clients, predictor: Predictor, validates: bool) -> dict[str, Any]:
    shards, rows = clients.shards, clients.rows
    of = (predictor.parameters_of, predictor.weights_of)
    mixture, measure = predictor.mixture, model.loss.measure
    mixes = mixture is not None and mixture.shape[1] > 1
    likelihoods = mixes and likelihood_differs(model.loss)
    found = {
        "ids": clients.ids,
        "n_train": shards.train.counts[rows],
        "n_test": shards.test.counts[rows],
        "mixture": None if mixture is None else mixture.double().cpu().numpy(),
    }
    splits = {"train": shards.train, "test": shards.test}
    if validates:
        splits["validation"] = shards.val
        found["n_validation"] = shards.val.counts[rows]
    for name, split in splits.items():
        if predictor.parameters is None:
            nothing = np.full(len(rows), np.nan)
            found |= {f"{name}_loss": nothing, f"{name}_accuracy": nothing}
            continue
        scores = client_scores(model, *of, split, rows, predictor.beside)
        with np.errstate(invalid="ignore"):
            share = scores.hits / scores.possible
        accurate = measure == "accuracy"
        found[f"{name}_loss"] = scores.loss
        found[f"{name}_accuracy"] = share if accurate else np.full(len(rows), np.nan)
        if likelihoods:
            found[f"{name}_nll"] = scores.nll
        if measure is not None and not accurate:
            found |= {f"{name}_{measure}": share, f"{name}_{measure}_possible": scores.possible}
    return found | {name: _array(values) for name, values in predictor.results.items()}


def _array(values: torch.Tensor) -> np.ndarray:
    return (values.double() if values.is_floating_point() else values).cpu().numpy()


def task_columns(model: Model, mixes: bool, validates: bool = False) -> list[str]:
    """Return the columns of metrics.csv that the task adds.

    Where numbers or tags are predicted, the negative log-likelihood of a mixture, up to a constant,
    differs from its loss and has columns besides.

    Parameters
    ----------
    model : Model
        Its loss names the measure.
    mixes : bool
        Whether mixtures of several models are deployed.
    validates : bool
        Whether validation splits are scored.
    """
    loss = model.loss
    splits = ("train", "test", "validation") if validates else ("train", "test")
    measures: list[str] = [] if loss.measure in (None, "accuracy") else [loss.measure]
    if mixes and likelihood_differs(loss):
        measures.append("nll")
    return [f"{split}_{measure}" for measure in measures for split in splits]


def summarise(
    results: ClientResults, client_weights: ClientWeights = "scored"
) -> dict[str, float | None]:
    """Return the columns of metrics.csv that describe scores of clients.

    Clients without a sample in a split are left out of its averages. The bottom decile is the
    ceil(T / 10)-th smallest accuracy of T clients, not interpolated; it, the minimum and the
    standard deviation count all clients alike.

    Parameters
    ----------
    results : ClientResults
        Scores of all clients.
    client_weights : {'scored', 'train', 'uniform'}
        Weights of averages: the samples of the split that is scored (for a recall the tags to be
        found), each client's training samples, or one.

    Returns
    -------
    dict of str to (float or None)
        Values by column; None where one does not apply.
    """
    seen = ~results.unseen
    tested = results.test_accuracy[seen & np.isfinite(results.test_accuracy)]

    def average(values: np.ndarray, counts: np.ndarray, among: np.ndarray) -> float | None:
        weights = {
            "scored": counts,
            "train": np.where(counts > 0, results.n_train, 0),
            "uniform": counts > 0,
        }[client_weights]
        return _average(values, weights, among)

    summary = {
        "train_loss": average(results.train_loss, results.n_train, seen),
        "train_accuracy": average(results.train_accuracy, results.n_train, seen),
        "test_loss": average(results.test_loss, results.n_test, seen),
        "test_accuracy": average(results.test_accuracy, results.n_test, seen),
        "test_accuracy_p10": bottom_decile(tested) if len(tested) else None,
        "test_accuracy_min": float(tested.min()) if len(tested) else None,
        "test_accuracy_std": float(tested.std()) if len(tested) else None,
    }
    samples = {"train": results.n_train, "test": results.n_test}
    if "n_validation" in results.more:
        samples["validation"] = results.more["n_validation"]
    for name in (*VALIDATION_COLUMNS, *(f"{split}_nll" for split in samples)):
        if name in results.more:
            summary[name] = average(results.more[name], samples[name.partition("_")[0]], seen)
    for name in results.more:
        if f"{name}_possible" in results.more:
            counts = results.more[f"{name}_possible"]
            summary[name] = average(results.more[name], counts, seen)
    if results.unseen.any():
        train = average(results.train_accuracy, results.n_train, results.unseen)
        test = average(results.test_accuracy, results.n_test, results.unseen)
        summary |= {"unseen_train_accuracy": train, "unseen_test_accuracy": test}
    return summary


def bottom_decile(accuracies: np.ndarray) -> float:
    """Return the ceil(T / 10)-th smallest of T values.

    Parameters
    ----------
    accuracies : ndarray
        (T,), in any order, T at least 1.

    Examples
    --------
    >>> bottom_decile(np.arange(20.0))
    1.0
    """
    return float(np.sort(accuracies)[-(-len(accuracies) // 10) - 1])


def _average(values: np.ndarray, weights: np.ndarray, among: np.ndarray) -> float | None:
    scored = among & (weights > 0)
    if not scored.any() or np.isnan(values[scored]).all():
        return None
    return float((values[scored] * weights[scored]).sum() / weights[scored].sum())


def warn_of_losses(results: ClientResults, round: int, advice: str) -> bool:
    """Log which clients have a loss that is not finite although the state is.

    Parameters
    ----------
    results : ClientResults
        Scores of all clients.
    round : int
        The round, for the message.
    advice : str
        What may help, for the message.

    Returns
    -------
    bool
        Whether there was such a client.
    """
    loss = results.train_loss
    scored = np.isfinite(loss).any() or np.isfinite(results.train_accuracy).any()
    bad = np.flatnonzero(~np.isfinite(loss) & (results.n_train > 0) & ~results.unseen)
    if not scored or not len(bad):
        return False
    others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    logging.getLogger("mpifed").warning(
        f"after round {round} the training loss of client {bad[0]}{others} is not finite: numbers "
        f"have grown too large, and {advice}"
    )
    return True
