"""Mixing matrices: the weights with which nodes average their neighbours' values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from topologies.errors import TopologyError
from topologies.memory_limits import check_memory
from topologies.node_counts import MATRIX_NODE_BYTES
from topologies.regular_files import check_archive

if TYPE_CHECKING:
    from scipy import sparse

BUILT_TOLERANCE = 1e-12
IMPORT_TOLERANCE = 1e-8
NEGATIVE, COLUMNS = "entries are negative", "columns do not sum to one"
ACTIVE = 1e-7

REMEDY = (
    "divide each row by its sum, or give the graph (an adjacency matrix has only zeros and ones) "
    "as a topology, for which a weight rule such as metropolis_hastings computes W"
)


def node_sums(n: int, edges: NDArray[np.int64], values: NDArray[Any]) -> NDArray[np.float64]:
    """Return the sum of the values on each node's edges."""
    ends = np.concatenate([edges[:, 0], edges[:, 1]])
    return np.bincount(ends, np.concatenate([values, values]), n).astype(np.float64)


def at_most_one(
    n: int, edges: NDArray[np.int64], weights: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Scale weights down so that the sum at each node is at most one, also in floating point."""
    while (sums := node_sums(n, edges, weights)).max() > 1:
        divisor = np.where(sums > 1, sums * (1 + np.finfo(float).eps), 1)
        weights = weights / divisor[edges].max(axis=1)
    return weights


def canonical_edges(
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


@dataclass(frozen=True)
class Violation:
    """One property that does not hold.

    Attributes
    ----------
    name : str
        What is violated.
    value : float
        By how much.
    tolerance : float
        How much is allowed.
    """

    name: str
    value: float
    tolerance: float

    def __str__(self) -> str:
        return f"{self.name} by {self.value:.3g} (allowed {self.tolerance:.3g})"


@dataclass(frozen=True)
class Report:
    """The violations found in a matrix.

    Attributes
    ----------
    violations : tuple[Violation, ...]
        The violations; empty if every property holds.
    """

    violations: tuple[Violation, ...]

    @property
    def ok(self) -> bool:
        """Whether every property holds."""
        return not self.violations

    def __str__(self) -> str:
        return "; ".join(map(str, self.violations)) or "no violation"

    def besides(self, *names: str) -> Report:
        """Return the report without some violations."""
        return Report(
            tuple(violation for violation in self.violations if violation.name not in names)
        )


def violations(array: sparse.csr_array, tolerance: float) -> Report:
    """Check that a square array is finite, non-negative and doubly stochastic."""
    if not np.isfinite(array.data).all():
        return Report((Violation("entries are not finite", float("inf"), 0.0),))
    excess = {
        "rows do not sum to one": np.abs(array.sum(axis=1) - 1).max(),
        COLUMNS: np.abs(array.sum(axis=0) - 1).max(),
        NEGATIVE: -min(array.data.min(initial=0.0), 0.0),
    }
    return Report(
        tuple(Violation(name, float(v), tolerance) for name, v in excess.items() if v > tolerance)
    )


@dataclass(frozen=True, eq=False)
class MixingMatrix:
    """A row-stochastic matrix W; one round of gossip is x <- W @ x.

    W[i, j] is the weight that the receiver i gives to the message from the sender j. Only the
    weights between different nodes are stored. The weight a node keeps for itself is one minus
    their sum, so that rows sum to one by construction, and a symmetric matrix is doubly stochastic
    by construction.

    Attributes
    ----------
    n : int
        The number of nodes.
    edges : ndarray of int64, shape (m, 2)
        The edges in lexicographic order. Symmetric: each {i, j} once with i < j; otherwise each
        (receiver, sender).
    weights : ndarray of float64, shape (m,)
        The weight of each edge; zero is allowed and counts as an edge.
    symmetric : bool
        Whether each edge is used in both directions with the same weight.
    info : Mapping[str, Any]
        The origin of the matrix (rule, certificate, the graph's metadata); it does not count in
        comparisons.

    Raises
    ------
    TopologyError
        If the edges are not simple edges on 0 .. n-1 or a weight is not finite.

    Examples
    --------
    >>> pair = MixingMatrix(2, np.array([[0, 1]]), np.array([0.25]))
    >>> pair.to_dense()
    array([[0.75, 0.25],
           [0.25, 0.75]])
    """

    n: int
    edges: NDArray[np.int64]
    weights: NDArray[np.float64]
    symmetric: bool = True
    info: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        edges, weights = canonical_edges(self.n, self.edges, self.weights, self.symmetric)
        for array in (edges, weights):
            array.setflags(write=False)
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "weights", weights)

    @classmethod
    def from_sparse(
        cls, matrix: Any, tolerance: float = IMPORT_TOLERANCE, info: Mapping[str, Any] | None = None
    ) -> MixingMatrix:
        """Return the mixing matrix of a square array, dense or scipy sparse.

        Entries that are not stored are not edges. A matrix within ``tolerance`` of symmetric is
        symmetrised; the diagonal is replaced by one minus the rest of the row.

        Parameters
        ----------
        matrix : array_like or scipy sparse array, shape (n, n)
            The entries.
        tolerance : float, default IMPORT_TOLERANCE
            The largest violation allowed.
        info : Mapping[str, Any], optional
            The ``info`` of the result.

        Returns
        -------
        MixingMatrix
            The matrix.

        Raises
        ------
        TopologyError
            If rows do not sum to one or entries are negative beyond ``tolerance``; the message
            lists the violations. Columns of a directed matrix may sum to anything.
        """
        from scipy import sparse

        try:
            array = sparse.csr_array(matrix, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise TopologyError(f"{type(matrix).__name__} is not a matrix of numbers") from error
        if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.shape[0]:
            raise TopologyError(
                f"the matrix has shape {array.shape}, but must be square and not empty"
            )
        report = violations(array, tolerance).besides(COLUMNS)
        if not report.ok:
            raise TopologyError(f"the matrix is not a mixing matrix: {report}; {REMEDY}")
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
        """One minus the sum of the weights each node gives to others, float64, shape (n,)."""
        if self.symmetric:
            return 1.0 - node_sums(self.n, self.edges, self.weights)
        received = np.bincount(self.edges[:, 0], self.weights, self.n)
        return (1.0 - received).astype(np.float64)

    @cached_property
    def _entries(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]:
        """Rows, columns and values of W without its diagonal, not sorted."""
        i, j = self.edges.T
        if not self.symmetric:
            return i, j, self.weights
        return np.append(i, j), np.append(j, i), np.tile(self.weights, 2)

    @cached_property
    def _neighbour_weights(self) -> sparse.csr_array:
        return _compressed(self.n, *self._entries)

    def to_sparse(self) -> sparse.csr_array:
        """Return W with its diagonal, float64 CSR of shape (n, n) without stored zeros."""
        rows, cols, data = self._entries
        nodes = np.arange(self.n)
        data = np.append(data, self.self_weights)
        stored = data != 0
        rows, cols = np.append(rows, nodes), np.append(cols, nodes)
        return _compressed(self.n, rows[stored], cols[stored], data[stored])

    def to_dense(self) -> NDArray[np.float64]:
        """Return W, float64 of shape (n, n).

        Raises
        ------
        TopologyError
            If there is no memory for so many numbers.
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
        """Return the report on whether the matrix is non-negative and doubly stochastic."""
        return violations(self.to_sparse(), tolerance)

    def restricted_to(self, active: NDArray[np.bool_]) -> MixingMatrix:
        """Return the matrix of a round in which only the active nodes take part.

        An edge with an inactive end is not used, and its weight is added to the self-weights of its
        ends: a symmetric matrix stays symmetric and doubly stochastic, and an inactive node keeps
        its value. A directed one stays row-stochastic only.

        Parameters
        ----------
        active : ndarray of bool, shape (n,)
            Whether each node takes part.

        Returns
        -------
        MixingMatrix
            The matrix of the round.

        Raises
        ------
        TopologyError
            If ``active`` has another shape.
        """
        active = np.asarray(active, dtype=bool)
        if active.shape != (self.n,):
            raise TopologyError(
                f"active has shape {active.shape}, but must be a boolean for each of {self.n} nodes"
            )
        return self.with_edges(active[self.edges[:, 0]] & active[self.edges[:, 1]])

    def with_edges(self, chosen: NDArray[np.bool_]) -> MixingMatrix:
        """Return the matrix with the ``chosen`` edges, bool of shape (m,), only.

        The weight of a removed edge is added to the self-weights of its ends.
        """
        return MixingMatrix(
            self.n, self.edges[chosen], self.weights[chosen], self.symmetric, self.info
        )

    def save(self, path: str | Path) -> None:
        """Write the matrix, exactly, as an ``.npz`` file, which replaces one that is there."""
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

        Parameters
        ----------
        path : str | Path
            The file.

        Returns
        -------
        MixingMatrix
            The matrix.

        Raises
        ------
        TopologyError
            If the file cannot be read, is of another kind, or its content does not match its hash.
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
            raise TopologyError(
                f"{str(path)!r} is not a file of a mixing matrix: {error}"
            ) from error
        if not intact:
            raise TopologyError(
                f"{str(path)!r} is damaged: its content does not have the hash stored with it"
            )
        return matrix


def _compressed(
    n: int, rows: NDArray[np.int64], cols: NDArray[np.int64], data: NDArray[np.float64]
) -> sparse.csr_array:
    """The CSR array of distinct entries; by way of COO and sums it takes four times as long."""
    from scipy import sparse

    order = np.lexsort((cols, rows))
    starts = np.append(0, np.cumsum(np.bincount(rows, minlength=n)))
    return sparse.csr_array((data[order], cols[order], starts), shape=(n, n))
