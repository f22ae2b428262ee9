"""The federation: its clients, the ranks that host them, and who takes part in a round; every rank
knows it alike. Users and algorithms work with clients, which only this room translates to ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from mpifed.federation.participation import (
    Participation,
    count_unseen,
    inclusion,
    is_unbiased,
    present,
)
from mpifed.federation.tree import Tree, codes_of, group_sizes
from mpifed.mpi.communicator import Communicator
from mpifed.random import stream


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
