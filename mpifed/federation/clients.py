"""Clients, the ranks that host them, and who takes part in a round.

Users and algorithms work with clients; only this module translates them to ranks. ``Federation``
is what every rank knows alike; ``Clients`` is the view of some hosted clients that a method
computes on.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from mpifed.data.base import Shards
from mpifed.federation.participation import (
    Participation,
    count_unseen,
    inclusion,
    is_unbiased,
    present,
)
from mpifed.federation.tree import Tree, codes_of, group_sizes
from mpifed.mpi.communicator import Communicator
from mpifed.random import client_keys, stream


@dataclass(frozen=True)
class Federation:
    """The clients 0 ... n-1, their owners and their numbers of training samples.

    Attributes
    ----------
    communicator : Communicator
        The ranks.
    owner : ndarray of int32, shape (n_clients,)
        The rank that hosts each client.
    unseen : ndarray of bool, shape (n_clients,)
        True for clients that are kept out of training.
    n_train : ndarray of int64, shape (n_clients,)
        Training samples of each client.
    participation : float or mapping
        Who takes part in a round; see ``participation``.
    """

    communicator: Communicator
    owner: np.ndarray
    unseen: np.ndarray
    n_train: np.ndarray
    participation: Participation = 1.0

    @property
    def n_clients(self) -> int:
        """The number of clients, unseen ones included."""
        return len(self.owner)

    @cached_property
    def hosted(self) -> np.ndarray:
        """The clients of this rank, ascending, int64 (n_hosted,)."""
        return np.flatnonzero(self.owner == self.communicator.rank)

    @cached_property
    def training(self) -> np.ndarray:
        """The clients that take part in training, ascending, int32 (n_training,)."""
        return np.flatnonzero(~self.unseen).astype(np.int32)

    @cached_property
    def tree(self) -> Tree:
        """The tree along which sums over clients are added."""
        sizes = group_sizes(self.communicator.nodes())
        return Tree(codes_of(self.n_train), self.owner, sizes)

    @cached_property
    def n_train_total(self) -> int:
        """Training samples of all training clients, the n of the papers."""
        return int(self.n_train[self.training].sum())

    @cached_property
    def inclusion(self) -> float:
        """The probability with which a training client takes part in a round, the p of FedMM."""
        return inclusion(self.participation, len(self.training))

    @property
    def is_unbiased(self) -> bool:
        """Whether a server weighs participants by n_t / (n p) instead of n_t over their sum."""
        return is_unbiased(self.participation)

    def hosted_of(self, rank: int) -> np.ndarray:
        """Return the clients of ``rank``, ascending, int64."""
        return np.flatnonzero(self.owner == rank)


def draw_unseen(n_clients: int, fraction: float, seed: int) -> np.ndarray:
    """Draw the clients that are kept out of training.

    Parameters
    ----------
    n_clients : int
        The number of clients.
    fraction : float
        The share that is kept out, in [0, 1].
    seed : int
        The seed of the run.

    Returns
    -------
    ndarray of bool, shape (n_clients,)
        True for unseen clients.
    """
    unseen = np.zeros(n_clients, bool)
    count = count_unseen(n_clients, fraction)
    if not count:
        return unseen
    unseen[stream(seed, "unseen").permutation(n_clients)[:count]] = True
    return unseen


def participants(
    federation: Federation, participation: Participation, seed: int, round: int
) -> np.ndarray:
    """Return who takes part in ``round``: bool (n_clients,), the same on every rank."""
    return present(participation, federation.training, federation.n_clients, seed, round)


@dataclass(frozen=True)
class Clients:
    """Some of the clients hosted on this rank, as a method sees them.

    ``len(clients)`` is their number, and ``ids``, ``n_train``, ``weights`` and ``equal_weights``
    have an entry for each.

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
    """

    federation: Federation
    shards: Shards
    rows: np.ndarray
    effort: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.rows)

    @cached_property
    def device(self) -> torch.device:
        """Where the samples are, and with them the models."""
        return self.shards.device

    @cached_property
    def ids(self) -> np.ndarray:
        """Client numbers, int64 (len,)."""
        return self.shards.client_ids[self.rows]

    @cached_property
    def positions(self) -> np.ndarray:
        """Positions of these clients among those in training, int64 (len,); not of unseen ones."""
        return np.searchsorted(self.federation.training, self.ids)

    @cached_property
    def n_train(self) -> np.ndarray:
        """The training samples n_t of each client, int64 (len,)."""
        return self.federation.n_train[self.ids]

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
