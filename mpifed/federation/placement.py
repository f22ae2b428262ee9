"""Which rank hosts which client: for equal work, or so that few edges cross between ranks. For
equal work, clients are dealt out one by one, the costliest first, each to the rank with the least
work so far (Graham 1969, LPT): no rank has more than 4/3 of the least largest work.
"""

from __future__ import annotations

import heapq

import numpy as np
import scipy.sparse
import scipy.sparse.csgraph
import scipy.sparse.linalg

from mpifed.federation.clients import contiguous_owners
from mpifed.mpi.communicator import Communicator

# Nodes up to which all eigenvectors are computed at once.
DENSE = 500


def partitioned_owners(
    work: np.ndarray,
    unseen: np.ndarray,
    links: scipy.sparse.csr_array,
    communicator: Communicator,
) -> np.ndarray:
    """Assign clients to ranks so that few edges of the graph cross between ranks. Collective."""
    if communicator.rank == 0:
        training = np.flatnonzero(~unseen)
        line = np.concatenate([training[spectral_order(links)], np.flatnonzero(unseen)])
        by_line = np.empty(len(work), np.int32)
        by_line[line] = contiguous_owners(work[line], communicator.size)
        by_number = contiguous_owners(work, communicator.size)
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


def imbalance(work: np.ndarray, owner: np.ndarray, n_ranks: int) -> float:
    """Return the largest work of a rank over the mean of all ranks, at least 1."""
    loads = np.bincount(owner, work, minlength=n_ranks)
    return float(loads.max() / loads.mean())


def spectral_order(links: scipy.sparse.csr_array) -> np.ndarray:
    """Order the nodes of a graph by component, each component along its Fiedler vector."""
    count, label = scipy.sparse.csgraph.connected_components(links, directed=False)
    parts = []
    for component in range(count):
        nodes = np.flatnonzero(label == component)
        parts.append(nodes[np.argsort(_fiedler(links[nodes][:, nodes]), kind="stable")])
    return np.concatenate(parts)


def _fiedler(links: scipy.sparse.csr_array) -> np.ndarray:
    n = links.shape[0]
    if n < 3:
        return np.zeros(n)
    laplacian = scipy.sparse.csgraph.laplacian(scipy.sparse.csr_array(links, dtype=float))
    if n <= DENSE:
        return np.linalg.eigh(laplacian.toarray())[1][:, 1]
    # Just below the eigenvalue 0 the shifted matrix is regular and the Fiedler vector dominates.
    shift = -1e-5 * float(laplacian.diagonal().max())
    start = np.linspace(-1, 1, n) ** 3
    found = scipy.sparse.linalg.eigsh(laplacian.tocsc(), k=2, sigma=shift, v0=start)
    return found[1][:, np.argmax(found[0])]


def rows_sent(links: scipy.sparse.csr_array, owner: np.ndarray) -> int:
    """Return how many distinct rows cross between ranks in a round."""
    pairs = links.tocoo()
    receiver, sender = pairs.row, pairs.col
    across = owner[receiver] != owner[sender]
    pairs = owner[receiver[across]].astype(np.int64) * len(owner) + sender[across]
    return len(np.unique(pairs))
