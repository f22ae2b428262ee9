"""Mixing matrices: the weights with which nodes average their neighbours' values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from topologies.catalogue import MATRIX_NODE_BYTES, TopologyError, check_memory
from topologies.inputs import check_archive

BUILT_TOLERANCE = 1e-12
IMPORT_TOLERANCE = 1e-8
ACTIVE = 1e-7
NEGATIVE = "entries are negative"


@dataclass(frozen=True, eq=False)
class MixingMatrix:
    """A row-stochastic matrix W; one round of gossip is x <- W @ x.

    W[i, j] is the weight that the receiver i gives to the message from j. Only the weights
    between different nodes are stored. The weight a node keeps for itself is one minus their sum,
    so that rows sum to one by construction, and a symmetric matrix is doubly stochastic by
    construction.

    Attributes:
        n: number of nodes.
        edges: int64 [m, 2] in lexicographic order; symmetric: each {i, j} once with i < j;
            otherwise each (receiver, sender).
        weights: float64 [m], the weight of each edge; zero is allowed and counts as an edge.
        symmetric: whether each edge is used in both directions with the same weight.
        info: where the matrix came from (rule, certificate, the graph's metadata); no part of its
            identity.

    Raises:
        TopologyError: if the edges are no simple edges on 0 .. n-1 or a weight is not finite.
    """

    n: int
    edges: NDArray[np.int64]
    weights: NDArray[np.float64]
    symmetric: bool = True
    info: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        edges, weights = _canonical(self.n, self.edges, self.weights, self.symmetric)
        for array in (edges, weights):
            array.setflags(write=False)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "weights", weights)

    @classmethod
    def from_sparse(
        cls, matrix: Any, tolerance: float = IMPORT_TOLERANCE, info: Mapping[str, Any] | None = None
    ) -> MixingMatrix:
        """Return the mixing matrix of a square array, dense or scipy sparse.

        Entries that are not stored are no edges. What is within ``tolerance`` of symmetric is made
        so; the diagonal is replaced by one minus the rest.

        Raises:
            TopologyError: if the array is not doubly stochastic and non-negative within
                ``tolerance``; the message is the report of what is violated.
        """
        array = sparse.csr_array(matrix, dtype=np.float64)
        if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.shape[0]:
            raise TopologyError(
                f"the matrix has shape {array.shape}, but must be square and not empty"
            )
        report = violations(array, tolerance)
        if not report.ok:
            raise TopologyError(f"the matrix is no mixing matrix: {report}")
        n = array.shape[0]
        symmetric = abs(array - array.T).max() <= tolerance
        if symmetric:
            array = sparse.triu((array + array.T) / 2, k=1, format="coo")
        else:
            array = array.tocoo()
        rows, cols = array.row, array.col
        off = rows != cols
        edges, weights = np.stack([rows[off], cols[off]], axis=1), np.maximum(array.data[off], 0.0)
        if symmetric:
            weights = at_most_one(n, edges, weights)
        return cls(n, edges, weights, symmetric=bool(symmetric), info=info or {})

    @cached_property
    def self_weights(self) -> NDArray[np.float64]:
        """float64 [n]: one minus the sum of the weights each node gives to others."""
        if self.symmetric:
            return 1.0 - node_sums(self.n, self.edges, self.weights)
        received = np.bincount(self.edges[:, 0], self.weights, self.n)
        return (1.0 - received).astype(np.float64)

    @cached_property
    def _neighbour_weights(self) -> sparse.csr_array:
        i, j = self.edges.T
        rows, cols, data = i, j, self.weights
        if self.symmetric:
            rows, cols, data = np.append(i, j), np.append(j, i), np.tile(self.weights, 2)
        return sparse.csr_array(sparse.coo_array((data, (rows, cols)), shape=(self.n, self.n)))

    def to_sparse(self) -> sparse.csr_array:
        """Return W with its diagonal, float64 CSR of shape [n, n]."""
        return sparse.csr_array(self._neighbour_weights + sparse.diags(self.self_weights))

    def to_dense(self) -> NDArray[np.float64]:
        """Return W, float64 [n, n].

        Raises:
            TopologyError: if there is no memory for so many numbers.
        """
        check_memory(8 * self.n**2, f"the dense matrix of {self.n} nodes")
        dense = self._neighbour_weights.toarray()
        np.fill_diagonal(dense, self.self_weights)
        return dense

    def neighbours(self, i: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Return the nodes whose messages node i receives, ascending, and its weights for them."""
        rows = self._neighbour_weights
        part = slice(rows.indptr[i], rows.indptr[i + 1])
        return rows.indices[part].astype(np.int64), rows.data[part]

    @cached_property
    def doubly_stochastic(self) -> bool:
        """Whether columns sum to one as rows do, so that gossip preserves the mean."""
        if self.symmetric:
            return True
        columns = self._neighbour_weights.sum(axis=0) + self.self_weights
        return bool(np.abs(columns - 1).max() <= BUILT_TOLERANCE)

    @cached_property
    def sha256(self) -> str:
        """Hexadecimal SHA-256 of n, the symmetry, the edges and the weights, all little-endian."""
        digest = hashlib.sha256(np.array([self.n, self.symmetric], dtype="<i8").tobytes())
        digest.update(self.edges.astype("<i8").tobytes())
        digest.update(self.weights.astype("<f8").tobytes())
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MixingMatrix) and self.sha256 == other.sha256

    def __hash__(self) -> int:
        return hash(self.sha256)

    def validate(self, tolerance: float = BUILT_TOLERANCE) -> Report:
        """Return the report of what keeps this from being non-negative and doubly stochastic."""
        return violations(self.to_sparse(), tolerance)

    def pruned(self, tolerance: float = ACTIVE) -> MixingMatrix:
        """Return the matrix without edges of at most this absolute weight: they need no message."""
        return self.with_edges(np.abs(self.weights) > tolerance)

    def restricted_to(self, active: NDArray[np.bool_]) -> MixingMatrix:
        """Return the matrix of a round in which only the nodes where ``active`` is true take part.

        An edge with an inactive end is not used, and its weight returns to the ends' self-weights:
        a symmetric matrix stays symmetric and doubly stochastic, and an inactive node keeps its
        value. A directed one stays row-stochastic only.
        """
        active = np.asarray(active, dtype=bool)
        if active.shape != (self.n,):
            raise TopologyError(
                f"active has shape {active.shape}, but must be a boolean for each of {self.n} nodes"
            )
        return self.with_edges(active[self.edges[:, 0]] & active[self.edges[:, 1]])

    def with_edges(self, kept: NDArray[np.bool_]) -> MixingMatrix:
        """Return the matrix with these edges (bool [m]) only; other weights return to the ends."""
        return MixingMatrix(self.n, self.edges[kept], self.weights[kept], self.symmetric, self.info)

    def save(self, path: str | Path) -> None:
        """Write the matrix, exactly, as an ``.npz`` file."""
        with Path(path).open("wb") as file:
            np.savez_compressed(
                file,
                n=np.int64(self.n),
                edges=self.edges,
                weights=self.weights,
                symmetric=np.bool_(self.symmetric),
                info=np.str_(json.dumps(dict(self.info))),
                sha256=np.str_(self.sha256),
            )

    @classmethod
    def load(cls, path: str | Path) -> MixingMatrix:
        """Read a file written by :meth:`save`.

        Raises:
            TopologyError: if the file cannot be read, is of another kind, or does not hold what was
                written.
        """
        try:
            check_archive(path)
            with np.load(path, allow_pickle=False) as file:
                n = int(file["n"])
                check_memory(MATRIX_NODE_BYTES * n, f"{str(path)!r} says that n is {n}, which")
                matrix = cls(
                    n,
                    file["edges"],
                    file["weights"],
                    bool(file["symmetric"]),
                    json.loads(str(file["info"])),
                )
                intact = matrix.sha256 == str(file["sha256"])
        except FileNotFoundError:
            raise TopologyError(f"there is no file {str(path)!r}") from None
        except TopologyError:
            raise
        except Exception as error:  # zipfile, zlib, numpy and json each have their own
            raise TopologyError(f"{str(path)!r} is no file of a mixing matrix: {error}") from error
        if not intact:
            raise TopologyError(
                f"{str(path)!r} is damaged: its content does not have the hash stored with it"
            )
        return matrix


@dataclass(frozen=True)
class Violation:
    """One property that does not hold: by how much, and how much would be allowed."""

    name: str
    value: float
    tolerance: float

    def __str__(self) -> str:
        return f"{self.name} by {self.value:.3g} (allowed {self.tolerance:.3g})"


@dataclass(frozen=True)
class Report:
    """The violations found in a matrix; empty if it is fine."""

    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is violated."""
        return not self.violations

    def __str__(self) -> str:
        return "; ".join(map(str, self.violations)) or "no violation"


def violations(array: sparse.csr_array, tolerance: float) -> Report:
    """Check that a square array is finite, non-negative and doubly stochastic."""
    if not np.isfinite(array.data).all():
        return Report((Violation("entries are not finite", float("inf"), 0.0),))
    excess = {
        "rows do not sum to one": np.abs(array.sum(axis=1) - 1).max(),
        "columns do not sum to one": np.abs(array.sum(axis=0) - 1).max(),
        NEGATIVE: -min(array.data.min(initial=0.0), 0.0),
    }
    return Report(
        tuple(Violation(name, float(v), tolerance) for name, v in excess.items() if v > tolerance)
    )


def node_sums(n: int, edges: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.float64]:
    """Return float64 [n]: the sum of the values [m] on each node's edges [m, 2]."""
    ends = np.concatenate([edges[:, 0], edges[:, 1]])
    return np.bincount(ends, np.concatenate([values, values]), n).astype(np.float64)


def at_most_one(
    n: int, edges: NDArray[np.int64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Scale non-negative weights down so that no node's sum exceeds one, not even by rounding."""
    while (sums := node_sums(n, edges, weights)).max() > 1:
        divisor = np.where(sums > 1, sums * (1 + np.finfo(float).eps), 1)
        weights = weights / divisor[edges].max(axis=1)
    return weights


def _canonical(
    n: int, edges: Any, weights: Any, symmetric: bool
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return fresh arrays in canonical order."""
    edges = np.array(edges, dtype=np.int64).reshape(-1, 2)
    weights = np.array(weights, dtype=np.float64)
    if n < 1:
        raise TopologyError(f"n is {n}, but must be an integer of at least 1")
    if weights.shape != (len(edges),):
        raise TopologyError(
            f"weights have shape {weights.shape}, but must be one for each of {len(edges)} edges"
        )
    if not np.isfinite(weights).all():
        raise TopologyError("a weight is not finite")
    if symmetric:
        edges = np.sort(edges, axis=1)
    if len(edges) and (edges.min() < 0 or edges.max() >= n or (edges[:, 0] == edges[:, 1]).any()):
        raise TopologyError(f"an edge does not join two different nodes of 0 .. {n - 1}")
    keys = edges[:, 0] * n + edges[:, 1]
    if (np.diff(keys) < 0).any():
        order = np.argsort(keys, kind="stable")
        edges, weights, keys = edges[order], weights[order], keys[order]
    if (np.diff(keys) == 0).any():
        raise TopologyError("an edge is given twice")
    return edges, weights
