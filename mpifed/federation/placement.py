"""Where clients are computed: which rank hosts which.

Clients are placed on ranks for equal work, or so that few edges cross between ranks. For equal
work, clients are dealt out one by one, the costliest first, each to the rank with the least
work so far (Graham 1969, LPT): no rank has more than 4/3 of the least largest work.
"""

from __future__ import annotations

import heapq

import numpy as np
import scipy.sparse

from mpifed.federation.tree import Tree, codes_of
from mpifed.mpi.communicator import Communicator

# Share by which the largest work of a rank may grow for sums that move fewer bytes.
SLACK, ROUNDING = 0.05, 1e-12

# Nodes up to which all eigenvectors are computed at once.
DENSE = 500


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
    if blocks == 1:
        return np.zeros(n, np.int32)
    if blocks == n:
        return np.arange(n, dtype=np.int32)
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


def balanced_owners(work: np.ndarray, n_ranks: int) -> np.ndarray:
    """Assign clients to ranks so that ranks have nearly equal work."""
    owner, loads = np.zeros(len(work), np.int64), [(0.0, rank) for rank in range(n_ranks)]
    for client in np.argsort(-work, kind="stable").tolist():
        load, rank = loads[0]
        owner[client] = rank
        heapq.heapreplace(loads, (load + float(work[client]), rank))
    return owner


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
