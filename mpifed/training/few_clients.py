"""A few of the clients hosted here, with few samples and one local step, to try components with."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from mpifed.data.base import Shards, Split
from mpifed.federation.clients import Clients, Federation
from mpifed.mpi.played import Unheard
from mpifed.training.build import Setup
from mpifed.training.samples import Held, Samples

# Training clients of a rank that rehearse.
FEW = 3

# Samples of each: those of two minibatches, within these bounds.
FEWEST, MOST = 16, 256

# Largest product of parameters and samples of the client that is scored as in a run.
SCORED = 1 << 26

# A share of the local steps that rounds up to one.
ONE_STEP = 1e-12


def federation_of(federation: Federation, shards: Shards) -> Federation:
    """Return the federation as the owner of the clients of ``shards`` alone sees it."""
    ids, n_train = shards.client_ids, np.array(federation.n_train)
    n_train[ids] = shards.train.counts
    owner = np.ones(federation.n_clients, np.int32)
    owner[ids] = 0
    ranks = 2 if len(ids) < federation.n_clients else 1
    return dataclasses.replace(
        federation, communicator=Unheard(ranks, ranks), owner=owner, n_train=n_train
    )


def few_shards(setup: Setup, samples: Samples | None, scores: bool = False) -> Shards:
    """Return a few samples of a few clients hosted here; collective where ``samples`` is None."""
    federation = setup.federation
    hosted, is_unseen = federation.hosted, federation.unseen[federation.hosted]
    rows = np.sort([*np.flatnonzero(~is_unseen)[:FEW], *np.flatnonzero(is_unseen)[:1]]).astype(int)
    if samples is None:
        owner = np.ones(federation.n_clients, np.int32)
        owner[hosted[rows]] = 0
        alone = dataclasses.replace(federation, communicator=Unheard(2, 2), owner=owner)
        loaded, rows = dataclasses.replace(setup, federation=alone).load(), np.arange(len(rows))
    else:
        clients = samples.clients(rows)
        loaded, rows = clients.shards, clients.rows
    most = int(np.clip(2 * setup.configuration.local.batch_size, FEWEST, MOST))
    at_most = np.full(len(rows), most)
    if scores and len(rows):
        model = setup.model
        scored = min(model.scored_together, SCORED // max(1, model.n_parameters))
        at_most[loaded.train.counts[rows].argmax()] = max(most, scored)
    splits = (loaded.train, loaded.val, loaded.test)
    train, val, test = (_cut(each, rows, at_most) for each in splits)
    return Shards(loaded.client_ids[rows], train, val, test, setup.dataset.fresh)


def _cut(split: Split, rows: np.ndarray, most: np.ndarray) -> Split:
    """Return copies of the first samples of some clients."""
    starts, counts = split.offsets[:-1][rows], split.counts[rows].clip(max=most)
    chosen = [np.arange(start, start + n) for start, n in zip(starts, counts, strict=True)]
    samples = torch.from_numpy(np.concatenate([np.empty(0, np.int64), *chosen]))
    samples = samples.to(split.x.device)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Split(split.x[samples], split.y[samples], offsets)


class OneStep(Held):
    """Samples of clients that take one local step."""

    def clients(self, rows: np.ndarray, effort: np.ndarray | None = None) -> Clients:
        return Clients(self.federation, self.shards, rows, np.full(len(rows), ONE_STEP))
