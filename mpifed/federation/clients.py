"""Some clients hosted on this rank, as a method computes on them, and their random numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Shards
from mpifed.federation.federation import Federation
from mpifed.federation.reduction import weighted_sum
from mpifed.mpi.agreement import agree
from mpifed.random import client_keys, stream
from mpifed.state import on_host

T = TypeVar("T")


@dataclass(frozen=True)
class Clients:
    """Some of the clients hosted on this rank, as a method sees them.

    ``len(clients)`` is their number, and ``ids``, ``n_train``, ``weights`` and ``equal_weights``
    have an entry for each. The first four attributes make them.

    Attributes
    ----------
    federation : Federation
        All clients.
    shards : Shards
        The samples of the hosted clients, or of these alone.
    rows : ndarray of int64, shape (len,)
        Positions of these clients in ``shards``: among the hosted ones, or from 0 where the
        samples of these clients alone were made.
    effort : ndarray of float64, shape (len,), or None
        The share of its local steps that each client takes; None if all take all.
    ids : ndarray of int64, shape (len,)
        Client numbers.
    n_train : ndarray of int64, shape (len,)
        The training samples n_t of each client.
    device : torch.device
        Where the samples are, and with them the models.
    """

    federation: Federation
    shards: Shards
    rows: np.ndarray
    effort: np.ndarray | None = None
    ids: np.ndarray = field(init=False)
    n_train: np.ndarray = field(init=False)
    device: torch.device = field(init=False)

    def __post_init__(self) -> None:
        ids = self.shards.client_ids[self.rows]
        # The class is frozen.
        vars(self).update(ids=ids, n_train=self.federation.n_train[ids], device=self.shards.device)

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def positions(self) -> np.ndarray:
        """Positions of these clients among those in training, int64 (len,); not of unseen ones."""
        return np.searchsorted(self.federation.training, self.ids)

    @cached_property
    def weights(self) -> Tensor:
        """The weights n_t / n of eq. 6 and Alg. 1, line 10, float64 (len,)."""
        return torch.from_numpy(self.n_train / self.federation.n_train_total)

    @cached_property
    def equal_weights(self) -> Tensor:
        """1 / n for n training clients, float64 (len,)."""
        n = len(self.federation.training)
        return torch.full((len(self),), 1 / n, dtype=torch.float64)

    def average_weights(self, by_samples: bool) -> Tensor:
        """Return ``weights`` or ``equal_weights``."""
        return self.weights if by_samples else self.equal_weights

    @cached_property
    def sampled_weights(self) -> Tensor:
        """1 / (n p), float64 (len,), with p the probability of taking part.

        The sum over participants with these weights is an unbiased estimate of the mean over all n
        training clients.
        """
        share = 1 / (len(self.federation.training) * self.federation.inclusion)
        return torch.full((len(self),), share, dtype=torch.float64)

    @cached_property
    def starts(self) -> np.ndarray:
        """First training row of each client in ``shards.train``, int64 (len,)."""
        return self.shards.train.offsets[:-1][self.rows]

    def total(self, rows: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return sum_t weights[t] rows[t] over these clients of all ranks. Collective.

        It is measured, and not booked as sent.

        Parameters
        ----------
        rows : Tensor
            Their numbers, (len, ...).
        weights : Tensor, optional
            Their weights, (len,); ones by default.

        Returns
        -------
        Tensor
            float64, of the shape of a row: () where each client has one number.
        """
        w = torch.ones(len(self), dtype=torch.float64) if weights is None else weights
        flat = rows.double().reshape(len(self), rows.shape[1:].numel())
        summed = weighted_sum(self.federation, flat, on_host(w.double()), self.ids, "measure")
        return summed.reshape(rows.shape[1:])

    def largest(self, values: Tensor) -> float:
        """Return the largest of ``values`` of all ranks, 0 if there are none. Collective."""
        hosted = float(values.max()) if len(values) else 0.0
        return float(self.federation.communicator.max(np.array([hosted]))[0])

    def agreed(self, action: Callable[[], T]) -> T:
        """Return ``action()`` once it has ended on every rank. Collective."""
        return agree(self.federation.communicator, action)

    def computed_once(self, make: Callable[[], T]) -> T:
        """Return ``make()`` of rank 0 on every rank, so that all have the same bits. Collective."""
        communicator = self.federation.communicator
        return communicator.broadcast_object(make() if communicator.rank == 0 else None)

    def where_recorded(self, make: Callable[[], dict[str, T]]) -> dict[str, T]:
        """Return ``make()`` where metrics.csv is written; {} elsewhere. Not collective."""
        return make() if self.federation.communicator.rank == 0 else {}


@dataclass(frozen=True)
class Draws:
    """The random numbers of one round, in streams keyed by (seed, purpose, round, client).

    Attributes
    ----------
    seed : int
        The seed of the run.
    round : int
        The round.
    """

    seed: int
    round: int

    def stream(self, purpose: str, client: int = -1) -> np.random.Generator:
        """Return the generator of a purpose and a client; see ``mpifed.random.stream``."""
        return stream(self.seed, purpose, self.round, client)

    def client_keys(self, purpose: str, clients: np.ndarray) -> np.ndarray:
        """Return one key per client, uint64 (len(clients),); see ``mpifed.random.client_keys``."""
        return client_keys(self.seed, purpose, self.round, clients)
