"""A schedule in which a client gives all that it receives, and its own value, equal weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

import topologies


@dataclass(frozen=True)
class EqualReceipts:
    """The edges of ``inner`` with weights 1 / (1 + number of senders), which sums are made from.

    Attributes
    ----------
    inner : topologies.Schedule
        Says who receives from whom; edges of weight zero do not count.
    """

    inner: topologies.Schedule
    symmetric = False
    doubly_stochastic = False

    @property
    def n(self) -> int:
        """The number of nodes."""
        return self.inner.n

    @property
    def period(self) -> int | None:
        """That of ``inner``."""
        return self.inner.period

    @property
    def tau(self) -> int:
        """That of ``inner``."""
        return self.inner.tau

    def matrix(self, k: int) -> topologies.MixingMatrix:
        """Return W^k for the round k >= 1."""
        found = self.inner.matrix(k)
        edges = found.edges[found.weights != 0]
        if found.symmetric:
            edges = np.concatenate([edges, edges[:, ::-1]])
        senders = np.bincount(edges[:, 0], minlength=found.n)
        return topologies.MixingMatrix(
            found.n, edges, 1 / (1 + senders[edges[:, 0]]), symmetric=False
        )
