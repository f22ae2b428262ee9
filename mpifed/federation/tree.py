"""The binary tree over clients along which a server's sums are added, whoever takes part."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import NamedTuple

import numpy as np

# Ranks that add up their sums for each other; groups of so many do the same, and groups of these.
GROUP = 16

# The height of what is never merged.
APART = 255


class Subtrees(NamedTuple):
    """What a rank adds up for itself.

    Attributes
    ----------
    ids : ndarray
        The clients on it that take part, ascending.
    number : int
        How many subtrees it has.
    subtree_of : ndarray
        The subtree of each of ``ids``.
    firsts : ndarray
        The first of ``ids`` in each subtree that has any, where its sum is in the end.
    levels : list of (ndarray, ndarray)
        In which order rows of ``ids`` are added, see ``merges``.
    """

    ids: np.ndarray
    number: int
    subtree_of: np.ndarray
    firsts: np.ndarray
    levels: list[tuple[np.ndarray, np.ndarray]]


class Tree:
    """A binary tree whose leaves are the clients, in their order.

    A node is cut where its halves have nearly the same work, but never off its middle half, so that
    the tree of n clients has at most log(n) / log(4/3) levels.

    Parameters
    ----------
    codes : ndarray
        The path to each leaf from the highest bit on, uint64 (n_clients,), ascending; see
        ``codes_of``.
    owner : ndarray
        The rank of each client, (n_clients,).

    Attributes
    ----------
    inside : ndarray
        The height of the lowest node above each client that has clients of other ranks, int (n,).
    roots : ndarray
        The first clients of the largest subtrees whose clients all live on one rank, ascending.
    rank_of : ndarray
        The rank of each of these subtrees.
    """

    def __init__(self, codes: np.ndarray, owner: np.ndarray, sizes: tuple[int, ...] = ()) -> None:
        self.codes, self.sizes = codes, sizes
        n, leaves = len(owner), np.arange(len(owner))
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        ends = np.append(starts[1:], n)
        block = np.repeat(np.arange(len(starts)), ends - starts)
        before, behind = starts[block] - 1, ends[block]
        self.inside = np.full(n, APART)
        for others, there in ((before, before >= 0), (behind, behind < n)):
            heights = self.heights(leaves[there], others[there])
            self.inside[there] = np.minimum(self.inside[there], heights)
        joins = np.zeros(n, bool)
        joints = self.heights(leaves[1:], leaves[:-1])
        joins[1:] = (np.diff(owner) == 0) & (joints < self.inside[1:])
        self.roots = np.flatnonzero(~joins)
        self.rank_of = owner[self.roots]
        self._last: dict[int, Subtrees] = {}
        self._stages: dict[tuple[int, int, int], list[Stage]] = {}

    @property
    def group(self) -> int:
        """How many ranks add up their sums together."""
        return self.sizes[0] if self.sizes else GROUP

    @cached_property
    def above(self) -> Tree:
        """The tree whose leaves are ``roots``, on groups of ``group`` ranks."""
        return Tree(self.codes[self.roots], self.rank_of // self.group, self.sizes[1:])

    @cached_property
    def order(self) -> np.ndarray | None:
        """Where each of ``roots`` is among those of all ranks, rank by rank; None if in order."""
        order = np.argsort(np.argsort(self.rank_of, kind="stable"))
        return None if (np.diff(order) == 1).all() else order

    @cached_property
    def levels(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """In which order what ``roots`` come to is added, see ``merges``."""
        return merges(self.heights(self.roots[:-1], self.roots[1:]))

    def stages(self, rank: int, ranks: int, pieces: int) -> list[Stage]:
        """Return how ``rank`` helps to add what the subtrees of all come to, in so many pieces."""
        key = rank, ranks, pieces
        if key not in self._stages:
            self._stages[key] = list(_stages(self, *key))
        return self._stages[key]

    def subtrees(self, ids: np.ndarray, rank: int) -> Subtrees:
        """Return what ``rank`` adds up of the clients ``ids``, ascending, that live there."""
        subtrees = self._last.get(rank)
        if subtrees is None or not np.array_equal(subtrees.ids, ids):
            mine = self.roots[self.rank_of == rank]
            subtree_of = np.searchsorted(mine, ids, side="right") - 1
            inside = np.diff(subtree_of) == 0
            levels = merges(np.where(inside, self.heights(ids[:-1], ids[1:]), APART))
            firsts = np.flatnonzero(np.diff(subtree_of, prepend=-1))
            subtrees = self._last[rank] = Subtrees(
                ids.copy(), len(mine), subtree_of, firsts, levels
            )
        return subtrees

    def heights(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return the height of the lowest node above each pair of clients, int64."""
        apart = self.codes[one] ^ self.codes[other]
        # Without the second bit no rounding reaches the next power of two.
        return np.frexp((apart & ~(apart >> np.uint64(1))).astype(np.float64))[1].astype(np.int64)


class Stage(NamedTuple):
    """What a rank does where groups of ranks add up their sums, each rank some of the pieces.

    Attributes
    ----------
    send : dict
        The rows (subtree, piece) that each rank gets of this one.
    receive : dict
        How many rows come from each rank.
    order : ndarray or None
        Where what arrives is among the rows (subtree, piece) that are added; None if in order.
    adds : Subtrees
        How these are added.
    back : dict
        The pieces of the total that each rank gets of this one.
    total : dict
        How many of these come from each rank.
    """

    send: dict[int, np.ndarray]
    receive: dict[int, int]
    order: np.ndarray | None
    adds: Subtrees
    back: dict[int, np.ndarray]
    total: dict[int, int]


def _stages(tree: Tree, rank: int, ranks: int, pieces: int) -> Iterator[Stage]:
    span = 1
    while span < ranks:
        wide, above = span * tree.group, tree.above
        first, before = rank // wide * wide, _held(rank, span, ranks, pieces)
        after = _held(rank, wide, ranks, pieces)
        blocks = np.arange(np.count_nonzero(tree.rank_of == rank // span))[:, None] * len(before)
        send, receive, back, total = {}, {}, {}, {}
        for peer, both in _shared(first, wide, ranks, pieces, before):
            send[peer], total[peer] = (blocks + both - before.start).ravel(), len(both)
        items, parts = (
            np.flatnonzero(tree.rank_of // tree.group == rank // wide),
            [np.zeros(0, int)],
        )
        for other in range(first, min(first + wide, ranks), span):
            theirs = np.flatnonzero(tree.rank_of[items] == other // span)[:, None] * len(after)
            for peer, both in _shared(other, span, ranks, pieces, after):
                back[peer], receive[peer] = both - after.start, theirs.size * len(both)
                parts.append((theirs + back[peer]).ravel())
        permutation = np.concatenate(parts)
        order = None if (np.diff(permutation) == 1).all() else permutation
        yield Stage(send, receive, order, above.subtrees(items, rank // wide), back, total)
        span, tree = wide, above


def _held(rank: int, span: int, ranks: int, pieces: int) -> range:
    """The pieces that a rank has of what its group of ``span`` ranks adds up."""
    size, member = min(span, ranks - rank // span * span), rank % span
    return range(-(-member * pieces // size), -(-(member + 1) * pieces // size))


def _shared(
    first: int, span: int, ranks: int, pieces: int, own_pieces: range
) -> Iterator[tuple[int, np.ndarray]]:
    """The ranks of the group from ``first`` on that have some of ``own_pieces``, and which."""
    size = min(span, ranks - first)
    for member in range(
        own_pieces.start * size // pieces, (own_pieces.stop - 1) * size // pieces + 1
    ):
        held = _held(first + member, span, ranks, pieces)
        both = np.arange(max(held.start, own_pieces.start), min(held.stop, own_pieces.stop))
        if len(both):
            yield first + member, both


def group_sizes(nodes: np.ndarray) -> tuple[int, ...]:
    """Return in what groups the ranks of ``nodes``, (ranks,), add: hosts first, so that each sum
    leaves a host once; none where hosts do not have as many ranks, one behind the other.
    """
    each = int(np.count_nonzero(nodes == nodes[0]))
    if each == len(nodes) or (nodes != np.arange(len(nodes)) // each).any():
        return ()
    sizes = []
    while each > 1:
        sizes.append(max(k for k in range(1, GROUP + 1) if each % k == 0))
        if sizes[-1] == 1:
            sizes[-1] = each
        each //= sizes[-1]
    return tuple(sizes)


def codes_of(work: np.ndarray) -> np.ndarray:
    """Return the path to each client from the highest bit on, uint64 (n_clients,), ascending.

    The work of each client is of the data alone, not of ranks; integers (n_clients,).
    """
    total = np.concatenate([[0], np.cumsum(work)])
    twice = 2 * total
    codes, first, end = np.zeros(len(work), np.uint64), np.array([0]), np.array([len(work)])
    bit = np.uint64(1 << 63)
    while len(first):
        inner = end - first > 1
        first, end = first[inner], end[inner]
        both = total[first] + total[end]
        middle = np.searchsorted(twice, both)
        middle -= both - twice[middle - 1] <= twice[middle] - both
        edge = np.maximum(1, (end - first) // 4)
        middle = np.clip(middle, first + edge, end - edge)
        turns = np.zeros(len(work) + 1, np.int8)
        turns[middle], turns[end] = 1, -1
        codes[np.cumsum(turns[:-1], dtype=np.int8).view(bool)] |= bit
        # In the order of the clients, in which searches are fast.
        first, end = np.stack([first, middle], 1).ravel(), np.stack([middle, end], 1).ravel()
        bit >>= np.uint64(1)
    return codes


def merges(heights: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return which items are added to which, level by level.

    Parameters
    ----------
    heights : ndarray
        The height of the lowest node above each item and the one behind it; ``APART`` for none.

    Returns
    -------
    list of (ndarray, ndarray)
        Places where sums are and places of what is added to them: those of the first items.
    """
    first, last = np.arange(len(heights) + 1), np.arange(len(heights) + 1)
    order = np.argsort(heights, kind="stable")
    order = order[heights[order] < APART]
    levels = np.split(order, np.flatnonzero(np.diff(heights[order])) + 1) if len(order) else []
    merged = []
    for level in levels:
        left, right = first[level], level + 1
        end = last[right]
        first[end], last[left] = left, end
        merged.append((left, right))
    return merged
