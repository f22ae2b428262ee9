"""Which values are mixed in a round of asynchronous gossip, with which weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse

from topologies.events import Versions, averaged_in_turn
from topologies.timing import Links

FRESH = -1
"""The slot of a value that has been computed in the round itself."""


@dataclass(frozen=True)
class Plan:
    """The rows of a round as combinations of values.

    Attributes
    ----------
    weights : scipy.sparse.csr_array
        (rows, columns); rows sum to one. The first m columns are what the m participants have
        computed, the first m rows what they begin their next computation with.
    own : ndarray of int64, shape (rows,)
        The column whose weight is one minus the others.
    receiver : ndarray of int64, shape (rows,)
        The node that has each row.
    sender : ndarray of int64, shape (columns,)
        The node that has each column.
    slot : ndarray of int64, shape (columns,)
        The slot that it is kept in, or ``FRESH``.
    kept : ndarray of int64, shape (k,)
        What is kept of the round: columns before mixing, or rows after it.
    into : ndarray of int64, shape (k,)
        The slots.
    keeps_mixed : bool
        Whether ``kept`` are rows.
    messages : int
        Messages that are sent.
    staleness : ndarray of int64, shape (mixed,)
        Of each value of another node that is mixed: computations that the node has ended since it
        (``mixed_wait_free``). Of each participant: averages by others that have changed its value
        while it computed (``mixed_in_pairs``).
    """

    weights: scipy.sparse.csr_array
    own: np.ndarray
    receiver: np.ndarray
    sender: np.ndarray
    slot: np.ndarray
    kept: np.ndarray
    into: np.ndarray
    keeps_mixed: bool
    messages: int
    staleness: np.ndarray

    @property
    def participants(self) -> int:
        """Their number, m."""
        return int((self.slot == FRESH).sum())


@dataclass(frozen=True)
class Arcs:
    """Who hears whom in a round.

    Attributes
    ----------
    receiver, sender : ndarray of int64, shape (arcs,)
        The arcs.
    share : ndarray of float64, shape (arcs,)
        Their weights.
    travel : ndarray of float64, shape (arcs,)
        Seconds from the sending to the arrival of a message.
    reach : ndarray of float64, shape (n,)
        Seconds until a message of a node has arrived everywhere.
    heard : ndarray of int64, shape (n,)
        How many hear a node.
    """

    receiver: np.ndarray
    sender: np.ndarray
    share: np.ndarray
    travel: np.ndarray
    reach: np.ndarray
    heard: np.ndarray


def arcs_of(weights: scipy.sparse.csr_array, links: Links, bits: float) -> Arcs:
    """Return the arcs of a mixing matrix.

    Parameters
    ----------
    weights : scipy.sparse.csr_array
        W of the round over all nodes.
    links : Links
        The links.
    bits : float
        The size of a message.
    """
    every, n = weights.tocoo(), weights.shape[0]
    used = (every.row != every.col) & (every.data != 0)
    to, of = every.row[used].astype(np.int64), every.col[used].astype(np.int64)
    travel, reach = links.travel(to, of, bits), np.zeros(n)
    np.maximum.at(reach, of, travel)
    return Arcs(to, of, every.data[used], travel, reach, np.bincount(of, minlength=n))


def mixed_wait_free(
    arcs: Arcs,
    nodes: np.ndarray,
    times: np.ndarray,
    ended: np.ndarray,
    last: np.ndarray,
    versions: Versions,
) -> Plan:
    """Return what nodes mix of the latest versions that have arrived, and send theirs.

    Parameters
    ----------
    arcs : Arcs
        Who hears whom in the round.
    nodes : ndarray of int64, shape (m,)
        The participants, ascending.
    times : ndarray of float64, shape (m,)
        When their computations end.
    ended : ndarray of int64, shape (n,)
        How many computations each node has ended, those of the round included.
    last : ndarray of float64, shape (n,)
        When each node ends its computation of the round; -inf for those that end none.
    versions : Versions
        What is kept of earlier rounds; it has the new versions afterwards.
    """
    n, m = len(arcs.reach), len(nodes)
    place = np.full(n, -1)
    place[nodes] = np.arange(m)
    numbers = ended[nodes]
    into = versions.room(nodes, arcs.reach[nodes], times)
    sends = into >= 0
    mine = place[arcs.receiver] >= 0
    to, of = arcs.receiver[mine], arcs.sender[mine]
    share, travel = arcs.share[mine], arcs.travel[mine]
    at, fresh = times[place[to]], place[of] >= 0
    fresh[fresh] = sends[place[of[fresh]]] & (times[place[of[fresh]]] + travel[fresh] <= at[fresh])
    slot = np.where(fresh, FRESH, versions.latest(of, travel, at))
    known = fresh | (slot >= 0)
    to, of, share, slot, fresh = to[known], of[known], share[known], slot[known], fresh[known]
    newest = ended[of] - (last[of] > at[known])
    staleness = newest - np.where(fresh, ended[of], versions.number[of, slot])
    slots = versions.sent.shape[1]
    used_slots, place_of_slot = np.unique(of[~fresh] * slots + slot[~fresh], return_inverse=True)
    column = place[of]
    column[~fresh] = m + place_of_slot
    rows = np.concatenate([place[to], np.arange(m)])
    columns = np.concatenate([column, np.arange(m)])
    rest = 1 - np.bincount(place[to], share, minlength=m)
    shape = (m, m + len(used_slots))
    versions.send(nodes[sends], into[sends], times[sends], numbers[sends])
    return Plan(
        scipy.sparse.csr_array((np.concatenate([share, rest]), (rows, columns)), shape=shape),
        np.arange(m),
        nodes,
        np.concatenate([nodes, used_slots // slots]),
        np.concatenate([np.full(m, FRESH), used_slots % slots]),
        np.flatnonzero(sends),
        into[sends],
        keeps_mixed=False,
        messages=int(arcs.heard[nodes[sends]].sum()),
        staleness=staleness,
    )


def mixed_in_pairs(nodes: np.ndarray, partners: np.ndarray, changed: np.ndarray) -> Plan:
    """Return what nodes and partners have after averages that are made one after the other.

    The first slot of each node keeps its value, which others may change while it computes.

    Parameters
    ----------
    nodes : ndarray of int64, shape (m,)
        The participants, in order of time.
    partners : ndarray of int64, shape (m,)
        With whom each averages; itself for nobody.
    changed : ndarray of int64, shape (n,)
        How often others have changed each node's value since it began to compute; what it is after
        the round is written here.
    """
    staleness = np.zeros(len(nodes), np.int64)
    for k, (i, j) in enumerate(zip(nodes, partners, strict=True)):
        staleness[k], changed[i] = changed[i], 0
        if j != i:
            changed[j] += 1
    m, touched = len(nodes), np.unique(np.concatenate([nodes, partners]))
    t, order = len(touched), np.argsort(nodes)
    values, own = averaged_in_turn(nodes, partners, touched)
    # Participants come first, by number; then the values that are kept.
    columns = np.concatenate([t + order, np.arange(t)])
    weights = np.concatenate([own[order], values])[:, columns]
    # What a participant has computed is in both of its rows; it may be all that is.
    rest = m + np.arange(t)
    rest[np.searchsorted(touched, nodes[order])] = np.arange(m)
    return Plan(
        scipy.sparse.csr_array(weights),
        np.concatenate([np.arange(m), rest]),
        np.concatenate([nodes[order], touched]),
        np.concatenate([nodes[order], touched]),
        np.concatenate([np.full(m, FRESH), np.zeros(t, np.int64)]),
        m + np.arange(t),
        np.zeros(t, np.int64),
        keeps_mixed=True,
        messages=2 * int((partners != nodes).sum()),
        staleness=staleness,
    )
