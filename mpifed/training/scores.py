"""Scores of clients: for each client, on average, and at the bottom decile."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mpifed.algorithms.base import Predictor
from mpifed.federation.clients import Clients, Draws, Federation
from mpifed.federation.participation import count_participants
from mpifed.local.scoring import client_scores
from mpifed.models.base import Model
from mpifed.models.losses import likelihood_differs

# Columns of every metrics.csv.
COLUMNS = [
    "round",
    "seconds",
    "train_loss",
    "train_accuracy",
    "test_loss",
    "test_accuracy",
    "test_accuracy_p10",
    "test_accuracy_min",
    "test_accuracy_std",
    "active_clients",
    "up_bits",
    "down_bits",
    "consensus_distance",
    "state_digest",
]
UNSEEN_COLUMNS = ["unseen_train_accuracy", "unseen_test_accuracy"]


@dataclass(frozen=True)
class ClientResults:
    """Scores and sample counts of all clients, in client order; NaN where none applies."""

    n_train: np.ndarray
    n_test: np.ndarray
    train_loss: np.ndarray
    train_accuracy: np.ndarray
    test_loss: np.ndarray
    test_accuracy: np.ndarray
    unseen: np.ndarray
    mixture: np.ndarray | None = None
    more: dict[str, np.ndarray] = field(default_factory=dict)
    ids: np.ndarray | None = None

    @property
    def client_ids(self) -> np.ndarray:
        """The numbers of the clients, int64 (n_clients,), ascending."""
        return np.arange(len(self.n_train)) if self.ids is None else self.ids


def scored_clients(federation: Federation, share: float, draws: Draws) -> np.ndarray:
    """Return the clients that an evaluation scores, ascending, int64."""
    chosen = []
    kinds = {"training": federation.training, "unseen": np.flatnonzero(federation.unseen)}
    for kind, among in kinds.items():
        if len(among):
            count = count_participants(share, len(among))
            stream = draws.stream(f"evaluation/{kind}")
            chosen.append(among[stream.choice(len(among), count, replace=False, shuffle=False)])
    return np.sort(np.concatenate(chosen))


def score_clients(
    federation: Federation,
    model: Model,
    served: Iterable[tuple[Clients, Predictor]],
    validates: bool = False,
    ids: np.ndarray | None = None,
) -> ClientResults | None:
    """Score hosted clients on their training and test splits; collective."""
    parts = []
    for clients, predictor in served:
        if len(clients):
            parts.append(_score(model, clients, predictor, validates))
    gathered = federation.communicator.gather_object(parts)
    if gathered is None:
        return None
    every = [part for of_rank in gathered for part in of_rank]
    unseen = federation.unseen if ids is None else federation.unseen[ids]
    columns: dict[str, Any] = {}
    for name in dict.fromkeys(name for part in every for name in part if name != "ids"):
        having = [part for part in every if part.get(name) is not None]
        if not having:
            continue
        first = having[0][name]
        shape = (len(unseen), *first.shape[1:])
        columns[name] = np.full(shape, np.nan) if first.dtype == float else np.zeros(shape, int)
        for part in having:
            place = part["ids"] if ids is None else np.searchsorted(ids, part["ids"])
            columns[name][place] = part[name]
    own = {name: columns.pop(name) for name in list(columns) if name in _FIELDS}
    return ClientResults(unseen=unseen, **own, more=columns, ids=ids)


# The columns of ``metrics.csv`` where validation samples are scored.
VALIDATION_COLUMNS = ["validation_loss", "validation_accuracy"]

_FIELDS = set(ClientResults.__dataclass_fields__) - {"more", "ids"}


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
    """Return the columns of metrics.csv that the task adds."""
    loss = model.loss
    splits = ("train", "test", "validation") if validates else ("train", "test")
    measures: list[str] = [] if loss.measure in (None, "accuracy") else [loss.measure]
    if mixes and likelihood_differs(loss):
        measures.append("nll")
    return [f"{split}_{measure}" for measure in measures for split in splits]


def warn_of_losses(results: ClientResults, round: int, advice: str) -> bool:
    """Log which clients have a loss that is not finite although the state is."""
    loss = results.train_loss
    scored = np.isfinite(loss).any() or np.isfinite(results.train_accuracy).any()
    bad = np.flatnonzero(~np.isfinite(loss) & (results.n_train > 0) & ~results.unseen)
    if not scored or not len(bad):
        return False
    others = f" and {len(bad) - 1} more" if len(bad) > 1 else ""
    first = results.client_ids[bad[0]]
    logging.getLogger("mpifed").warning(
        f"after round {round} the training loss of client {first}{others} is not finite: numbers "
        f"have grown too large, and {advice}"
    )
    return True
