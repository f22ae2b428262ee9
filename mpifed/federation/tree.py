"""The binary tree over clients along which a server's sums are added, whoever takes part."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

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
    places : ndarray
        The subtree of each of ``ids``.
    firsts : ndarray
        The first of ``ids`` in each subtree that has any, where its sum is in the end.
    levels : list of (ndarray, ndarray)
        In which order rows of ``ids`` are added, see ``merges``.
    """

    ids: np.ndarray
    number: int
    places: np.ndarray
    firsts: np.ndarray
    levels: list[tuple[np.ndarray, np.ndarray]]


class Tree:
    """A binary tree whose leaves are the clients, in their order.

    A node is cut where its halves have nearly the same work, but never off its middle half, so that
    the tree of n clients has at most log(n) / log(4/3) levels.

    Parameters
    ----------
    work : ndarray
        The work of each client, integers (n_clients,): of the data alone, not of ranks.
    owner : ndarray
        The rank of each client, (n_clients,).
    ranks : int
        How many ranks there are, at least.

    Attributes
    ----------
    codes : ndarray
        The path to each leaf from the highest bit on, uint64 (n_clients,), ascending.
    inside : ndarray
        The height of the lowest node above each client that has clients of other ranks, int (n,).
    roots : ndarray
        The first clients of the largest subtrees whose clients all live on one rank, ascending.
    counts : list of int
        How many of these subtrees each rank has.
    top : list of (ndarray, ndarray)
        In which order their sums are added, see ``merges``.
    """

    def __init__(self, work: np.ndarray, owner: np.ndarray, ranks: int = 0) -> None:
        self.codes = _codes(np.asarray(work))
        n, places = len(owner), np.arange(len(owner))
        starts = np.flatnonzero(np.diff(owner, prepend=-1))
        ends = np.append(starts[1:], n)
        block = np.repeat(np.arange(len(starts)), ends - starts)
        before, behind = starts[block] - 1, ends[block]
        self.inside = np.full(n, APART)
        for others, there in ((before, before >= 0), (behind, behind < n)):
            found = self.heights(places[there], others[there])
            self.inside[there] = np.minimum(self.inside[there], found)
        joins = np.zeros(n, bool)
        beside = self.heights(places[1:], places[:-1])
        joins[1:] = (np.diff(owner) == 0) & (beside < self.inside[1:])
        self.roots = np.flatnonzero(~joins)
        self._rank_of = rank_of = owner[self.roots]
        self._last: dict[int, Subtrees] = {}
        self.counts = np.bincount(rank_of, minlength=ranks).tolist()
        self.top = merges(self.heights(self.roots[:-1], self.roots[1:]))
        self._order = arrival_order(rank_of)

    def subtrees(self, ids: np.ndarray, rank: int) -> Subtrees:
        """Return what ``rank`` adds up of the clients ``ids``, ascending, that live there."""
        found = self._last.get(rank)
        if found is None or not np.array_equal(found.ids, ids):
            mine = self.roots[self._rank_of == rank]
            places = np.searchsorted(mine, ids, side="right") - 1
            inside = np.diff(places) == 0
            levels = merges(np.where(inside, self.heights(ids[:-1], ids[1:]), APART))
            firsts = np.flatnonzero(np.diff(places, prepend=-1))
            found = self._last[rank] = Subtrees(ids.copy(), len(mine), places, firsts, levels)
        return found

    def in_order(self, rows: np.ndarray) -> np.ndarray:
        """Return rows of the subtrees, which are in the order of ranks, in that of ``roots``."""
        return np.asarray(rows[self._order])

    def heights(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return the height of the lowest node above each pair of clients, int64."""
        apart = self.codes[one] ^ self.codes[other]
        # Without the second bit no rounding reaches the next power of two.
        return np.frexp((apart & ~(apart >> np.uint64(1))).astype(np.float64))[1].astype(np.int64)


class Hosts:
    """How the ranks of several hosts share a sum.

    Of every host the i-th rank adds the i-th share of the columns: what its host has of it, and
    then its own part of that share for all hosts.

    Parameters
    ----------
    tree : Tree
        The tree over clients.
    work, owner : ndarray
        What it was made from.
    node : ndarray
        The host of each rank.
    rank : int
        This rank.

    Attributes
    ----------
    number : int
        How many hosts there are.
    adders : ndarray
        Which ranks add, as many on every host, bool.
    here, adding, alike : ndarray
        The ranks of this host, those of them that add, and those of all hosts that add the same
        share as this one: none where it adds nothing.
    tree : Tree
        The tree, with the largest subtrees whose clients all live on one host.
    own : Subtrees
        How this host adds the sums of its ranks.
    order, order_alike : ndarray or slice
        Where among the rows that arrive from ``here`` and from ``alike`` each sum is.
    """

    def __init__(
        self, tree: Tree, work: np.ndarray, owner: np.ndarray, node: np.ndarray, rank: int
    ) -> None:
        sizes = np.bincount(node)
        by_host = np.argsort(node, kind="stable")
        place = np.empty(len(node), np.int64)
        place[by_host] = np.arange(len(node)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        self.number, self.adders = len(sizes), place < sizes.min()
        self.here = np.flatnonzero(node == node[rank])
        self.adding = self.here[: sizes.min()]
        self.alike = np.flatnonzero(self.adders & (place == place[rank]))
        self.tree = Tree(work, node[owner], self.number)
        roots = tree.roots[node[owner[tree.roots]] == node[rank]]
        self.own = self.tree.subtrees(roots, int(node[rank]))
        self.order = arrival_order(owner[roots])
        sender = np.zeros(self.number, np.int64)
        sender[node[self.alike]] = self.alike
        self.order_alike = arrival_order(sender[node[owner[self.tree.roots]]])


def arrival_order(sender: np.ndarray) -> np.ndarray | slice:
    """Return where each item is among rows that arrive sender by sender."""
    if (np.diff(sender) >= 0).all():
        return slice(None)
    return np.argsort(np.argsort(sender, kind="stable"))


def _codes(work: np.ndarray) -> np.ndarray:
    total = np.concatenate([[0], np.cumsum(work)])
    codes, first, end = np.zeros(len(work), np.uint64), np.array([0]), np.array([len(work)])
    bit = np.uint64(1 << 63)
    while len(first):
        inner = end - first > 1
        first, end = first[inner], end[inner]
        both = total[first] + total[end]
        middle = np.searchsorted(2 * total, both)
        middle -= both - 2 * total[middle - 1] <= 2 * total[middle] - both
        edge = np.maximum(1, (end - first) // 4)
        middle = np.clip(middle, first + edge, end - edge)
        turns = np.zeros(len(work) + 1, np.int64)
        np.add.at(turns, middle, 1)
        np.add.at(turns, end, -1)
        codes[np.cumsum(turns[:-1]) > 0] |= bit
        first, end = np.concatenate([first, middle]), np.concatenate([middle, end])
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
    found = []
    for level in levels:
        left, right = first[level], level + 1
        end = last[right]
        first[end], last[left] = left, end
        found.append((left, right))
    return found
