"""When a cluster of clients splits, and into which two (Sattler, Mueller and Samek 2021).

Cosine similarities are those of clients' updates, without running statistics.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import torch
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from torch import Tensor

from mpifed.exchange.base import ServerChannel
from mpifed.federation.clients import Clients
from mpifed.local.objective import row_norms

Linkage = Literal["complete", "single"]
Norm = Literal["euclidean", "maximum"]
TINY = 1e-12
"""Added to products of norms, so that an update of zeros is similar to none."""


@dataclass(frozen=True)
class SplitRule:
    """Options of the same names of ``Clustered``, which say when a cluster splits."""

    eps1: float
    eps2: float
    linkage: Linkage
    gamma_max: float
    update_norm: Norm

    def __call__(
        self,
        means: Tensor,
        updates: Tensor,
        cluster: Tensor,
        clients: Clients,
        channel: ServerChannel,
    ) -> Tensor:
        """Return the clusters after the splits of a round. Collective.

        Parameters
        ----------
        means : Tensor
            Mean updates of the clusters, (clusters, n).
        updates : Tensor
            Updates of the clients hosted here, (clients, n).
        cluster : Tensor
            The cluster of each client of the federation, int64 (n_clients,).
        clients : Clients
            The clients hosted here.
        channel : ServerChannel
            The channel of the round.

        Returns
        -------
        Tensor
            int64 (n_clients,). Of two parts the one with the first client keeps its number.
        """
        is_euclidean = self.update_norm == "euclidean"
        norms = channel.collect(row_norms(updates) if is_euclidean else updates.abs().amax(1))

        def disagreeing() -> list[Tensor]:
            small = (row_norms(means) < self.eps1).cpu()
            members = [(cluster == label).numpy() for label in range(len(means))]
            large = [norms[one].max() > self.eps2 and one.sum() > 2 for one in members]
            return [(small & torch.tensor(large)).nonzero()[:, 0]]

        after = cluster.clone()
        for label in channel.at_server(disagreeing)[0].tolist():
            members = (cluster == label).numpy()
            products = channel.among(members).products(updates[members[clients.ids]])
            (leaving,) = channel.at_server(partial(self.leaving, products.cpu()))
            after[torch.from_numpy(np.flatnonzero(members))[leaving]] = after.max() + 1
        return after

    def leaving(self, products: Tensor) -> list[Tensor]:
        """Return which clients of a cluster leave it, int64 positions; none if it stays whole."""
        second, across = bipartition(products, self.linkage)
        apart = self.gamma_max < math.sqrt(max(0.0, (1 - across) / 2))
        return [(second & apart).nonzero()[:, 0]]


def bipartition(products: Tensor, linkage: Linkage) -> tuple[Tensor, float]:
    """Split clients in two by the cosine similarities of their updates.

    Parameters
    ----------
    products : Tensor
        Inner products of the updates, float64 (n, n), n at least 2.
    linkage : {'complete', 'single'}
        Rule of agglomerative clustering. 'single' minimises the largest similarity across: it cuts
        the weakest edge of the maximum spanning tree.

    Returns
    -------
    second : Tensor
        Whether a client is in the second part, bool (n,). Client 0 is in the first.
    across : float
        The largest similarity between clients of the two parts.

    Examples
    --------
    >>> updates = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    >>> bipartition(updates @ updates.T, "complete")
    (tensor([False,  True, False]), 0.0)
    """
    norms = products.diagonal().sqrt()
    similarity = (products / (norms[:, None] * norms + TINY)).numpy()
    distances = squareform(1.0 - similarity, checks=False).clip(min=0)
    parts = hierarchy.cut_tree(hierarchy.linkage(distances, linkage), 2)[:, 0]
    second = parts != parts[0]
    return torch.from_numpy(second), float(similarity[np.ix_(~second, second)].max())
