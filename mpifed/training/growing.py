"""Unseen clients that collect their data little by little (Marfoq et al. 2021, App. J.3, Figure
2).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from mpifed.algorithms import returned
from mpifed.algorithms.base import Predictor
from mpifed.data.base import Shards
from mpifed.federation.clients import Clients, Draws
from mpifed.local.minibatches import chosen
from mpifed.local.scoring import client_scores
from mpifed.training.build import Setup

# The data set of clients.h5, (clients, shares).
NAME = "test_accuracy_by_share"


def first_samples(clients: Clients, share: float) -> Clients:
    """Return the same clients with the first of their training samples."""
    known, federation = clients.shards, clients.federation
    train = known.train
    counts = np.floor(share * train.counts + 1e-9).astype(np.int64)
    begins = train.offsets[:-1]
    split = chosen(train, [np.arange(a, a + n) for a, n in zip(begins, counts, strict=True)])
    n_train = federation.n_train.copy()
    n_train[known.client_ids] = counts
    return replace(
        clients,
        federation=replace(federation, n_train=n_train),
        shards=Shards(known.client_ids, split, known.val, known.test, known.fresh),
    )


def with_growth(
    setup: Setup, state: Any, unseen: Clients, predictor: Predictor, draws: Draws
) -> Predictor:
    """Return ``predictor`` with the accuracies that its clients have with shares of their data."""
    shares = setup.configuration.evaluation.unseen_shares or ()
    found = np.full((len(unseen), len(shares)), np.nan)
    for k, share in enumerate(shares):
        fewer = first_samples(unseen, share)
        made = setup.algorithm.adapt(state, fewer, setup.exchange, draws)
        counts = len(fewer), setup.model.n_parameters
        adapted = returned.checked_predictor(setup.algorithm, "adapt", made, *counts)
        of = (adapted.parameters_of, adapted.weights_of)
        test = unseen.shards.test
        scores = client_scores(setup.model, *of, test, unseen.rows, adapted.beside)
        with np.errstate(invalid="ignore"):
            found[:, k] = scores.hits / scores.possible
    return replace(predictor, results={**predictor.results, NAME: torch.from_numpy(found)})
