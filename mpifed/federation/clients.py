"""Clients, the ranks that host them, and who takes part in a round.

Users and algorithms work with clients; only this module translates them to ranks. ``Federation``
is what every rank knows alike; ``Clients`` is the view of some hosted clients that a method
computes on.

Clients are placed on ranks for equal work, or so that few edges cross between ranks. For equal
work, clients are dealt out one by one, the costliest first, each to the rank with the least
work so far (Graham 1969, LPT): no rank has more than 4/3 of the least largest work.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse
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

# Share by which the largest work of a rank may grow for sums that move fewer bytes.
SLACK, ROUNDING = 0.05, 1e-12

# Nodes up to which all eigenvectors are computed at once.
DENSE = 500


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


def contiguous_owners(
    work: np.ndarray, n_ranks: int, n_train: np.ndarray | None = None
) -> np.ndarray:
    """Assign each rank a block of consecutive clients so that the largest work is least.

    Parameters
    ----------
    work : ndarray, shape (n_clients,)
        The work of each client, positive, in any unit.
    n_ranks : int
        The number of ranks.
    n_train : ndarray, shape (n_clients,), optional
        What ``Federation.tree`` is made from. Blocks then end where it is cut near its root, so
        that ranks send few sums of subtrees, with a largest work that is at most ``SLACK`` larger.

    Returns
    -------
    ndarray of int32, shape (n_clients,)
        The rank of each client, ascending. With no more ranks than clients every rank gets at least
        one; with more, the first n_clients ranks get one each.

    Notes
    -----
    The least largest work is found by bisection.

    Examples
    --------
    >>> contiguous_owners(np.array([1.0, 1.0, 1.0, 3.0]), 2).tolist()
    [0, 0, 0, 1]
    """
    n, blocks = len(work), min(n_ranks, len(work))
    total = np.concatenate([[0.0], np.cumsum(work, dtype=np.float64)])
    low, high = float(work.max()), float(total[-1])
    for _ in range(60):
        middle = (low + high) / 2
        if _last_starts(total, blocks, middle)[blocks] == 0:
            high = middle
        else:
            low = middle
    limit = high * (1 + (ROUNDING if n_train is None else SLACK))
    starts, after = [0], _last_starts(total, blocks, limit)
    heights = None
    if n_train is not None:
        heights = Tree(codes_of(n_train), np.zeros(n, int)).heights(
            np.arange(n - 1), np.arange(1, n)
        )
    for left in range(blocks - 1, 0, -1):
        begin = starts[-1]
        latest = int(np.searchsorted(total, total[begin] + limit, side="right")) - 1
        latest = max(begin + 1, min(latest, n - left))
        earliest = min(latest, max(begin + 1, after[left]))
        if heights is not None:
            end = earliest + int(np.argmax(heights[earliest - 1 : latest]))
        else:
            share = total[begin] + (total[-1] - total[begin]) / (left + 1)
            end = int(np.clip(np.searchsorted(total, share), earliest, latest))
        starts.append(end)
    owner = np.zeros(n, np.int32)
    owner[starts[1:]] = 1
    return np.cumsum(owner, out=owner)


def _last_starts(total: np.ndarray, blocks: int, limit: float) -> list[int]:
    """Where the last 0, 1, ... of ``blocks`` blocks of work up to ``limit`` begin at least."""
    starts = [len(total) - 1]
    for _ in range(blocks):
        first = int(np.searchsorted(total, total[starts[-1]] - limit))
        starts.append(max(0, min(first, starts[-1] - 1)))
    return starts


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

    @property
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


def partitioned_owners(
    work: np.ndarray,
    unseen: np.ndarray,
    links: scipy.sparse.csr_array,
    n_ranks: int,
    communicator: Communicator,
) -> np.ndarray:
    """Assign clients to ranks so that few edges of the graph cross between ranks. Collective."""
    if communicator.rank == 0:
        training = np.flatnonzero(~unseen)
        line = np.concatenate([training[spectral_order(links)], np.flatnonzero(unseen)])
        by_line = np.empty(len(work), np.int32)
        by_line[line] = contiguous_owners(work[line], n_ranks)
        by_number = contiguous_owners(work, n_ranks)
        crossing = [rows_sent(links, owner[training]) for owner in (by_line, by_number)]
        chosen = by_line if crossing[0] < crossing[1] else by_number
    return communicator.broadcast(chosen if communicator.rank == 0 else None)


def balanced_owners(work: np.ndarray, n_ranks: int) -> np.ndarray:
    """Assign clients to ranks so that ranks have nearly equal work."""
    owner, loads = np.zeros(len(work), np.int64), [(0.0, rank) for rank in range(n_ranks)]
    for client in np.argsort(-work, kind="stable").tolist():
        load, rank = loads[0]
        owner[client] = rank
        heapq.heapreplace(loads, (load + float(work[client]), rank))
    return owner


def spectral_order(links: scipy.sparse.csr_array) -> np.ndarray:
    """Order the nodes of a graph by component, each component along its Fiedler vector."""
    from scipy.sparse.csgraph import connected_components  # here and below, since few runs need it

    count, label = connected_components(links, directed=False)
    parts = []
    for component in range(count):
        nodes = np.flatnonzero(label == component)
        parts.append(nodes[np.argsort(_fiedler(links[nodes][:, nodes]), kind="stable")])
    return np.concatenate(parts)


def _fiedler(links: scipy.sparse.csr_array) -> np.ndarray:
    from scipy.sparse.csgraph import laplacian as laplacian_of
    from scipy.sparse.linalg import eigsh

    n = links.shape[0]
    if n < 3:
        return np.zeros(n)
    laplacian = laplacian_of(scipy.sparse.csr_array(links, dtype=float))
    if n <= DENSE:
        return np.linalg.eigh(laplacian.toarray())[1][:, 1]
    # Just below the eigenvalue 0 the shifted matrix is regular and the Fiedler vector dominates.
    shift = -1e-5 * float(laplacian.diagonal().max())
    start = np.linspace(-1, 1, n) ** 3
    eigenpairs = eigsh(laplacian.tocsc(), k=2, sigma=shift, v0=start)
    return eigenpairs[1][:, np.argmax(eigenpairs[0])]


def rows_sent(links: scipy.sparse.csr_array, owner: np.ndarray) -> int:
    """Return how many distinct rows cross between ranks in a round."""
    pairs = links.tocoo()
    receiver, sender = pairs.row, pairs.col
    across = owner[receiver] != owner[sender]
    pairs = owner[receiver[across]].astype(np.int64) * len(owner) + sender[across]
    return len(np.unique(pairs))
