"""The communication cost of gossip, and a simulation of gossip on random vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.analysis.consensus import ConsensusRate, consensus_rate, rounds_to
from topologies.matrix import ACTIVE, MixingMatrix
from topologies.parameters import check_memory
from topologies.schedules.sequences import Schedule, as_schedule

Array = NDArray[np.float64]

SAMPLED_ROUNDS = 50
MESSAGE_BYTES = 4_000_000


def sampled_rounds(schedule: Schedule) -> list[MixingMatrix]:
    """Return the matrices of one period, or of the first rounds of a schedule without one."""
    count = schedule.period or schedule.tau * math.ceil(SAMPLED_ROUNDS / schedule.tau)
    return [schedule.matrix(k) for k in range(1, count + 1)]


def messages_received(matrix: MixingMatrix) -> NDArray[np.int64]:
    """Return from how many other nodes each node needs a message in a round with this W."""
    edges = matrix.edges[np.abs(matrix.weights) > ACTIVE]
    receivers = edges.ravel() if matrix.symmetric else edges[:, 0]
    return np.bincount(receivers, minlength=matrix.n)


@dataclass(frozen=True)
class Communication:
    """The messages that a schedule sends.

    Attributes
    ----------
    messages : float
        Messages per round of all nodes together, on average.
    most_messages : int
        The most messages received by one node in one of the rounds looked at.
    bytes : float
        Bytes per round of all nodes together, on average.
    rounds : float
        Rounds until the distance from consensus is ``accuracy`` of the first; may be infinite.
    bytes_to_accuracy : float
        Bytes sent in these rounds.
    """

    messages: float
    most_messages: int
    bytes: float
    rounds: float
    bytes_to_accuracy: float


def communication(
    source: MixingMatrix | Schedule,
    *,
    message_bytes: float = MESSAGE_BYTES,
    accuracy: float = 1e-2,
    rate: ConsensusRate | None = None,
) -> Communication:
    """Return what gossip with a matrix or schedule sends.

    Edges of weight zero send nothing.

    Parameters
    ----------
    source : MixingMatrix | Schedule
        The matrix or schedule.
    message_bytes : float, default MESSAGE_BYTES
        The size of a message in bytes.
    accuracy : float, default 0.01
        The relative distance from consensus to reach, in (0, 1).
    rate : ConsensusRate, optional
        The consensus rate of ``source``, if it is known already.

    Returns
    -------
    Communication
        Messages, bytes and rounds.
    """
    schedule = as_schedule(source)
    received = [messages_received(matrix) for matrix in sampled_rounds(schedule)]
    messages = float(np.mean([counts.sum() for counts in received]))
    rounds = 0.0
    if schedule.n > 1:
        rounds = rounds_to(accuracy, rate or consensus_rate(schedule))
    total = messages * message_bytes * rounds if messages else 0.0
    most = max(int(counts.max()) for counts in received)
    return Communication(messages, most, messages * message_bytes, rounds, total)


@dataclass(frozen=True)
class GossipRun:
    """The course of gossip on random vectors over the rounds 0 .. K.

    Attributes
    ----------
    distance : ndarray of float64, shape (K + 1,)
        Root mean square distance of the nodes from their mean, 1 in round 0.
    predicted : ndarray of float64, shape (K + 1,)
        The bound by the consensus rate, (1 - p)^(floor(k / tau) / 2).
    rate : ConsensusRate
        The consensus rate.
    contraction : float
        Factor per round on the distance, measured over the later half of the rounds above rounding
        error.
    drift : float
        The total movement of the mean, relative to the distance in round 0.
    """

    distance: Array
    predicted: Array
    rate: ConsensusRate
    contraction: float
    drift: float


def gossip(
    source: MixingMatrix | Schedule, rounds: int = 100, *, width: int = 16, seed: int = 0
) -> GossipRun:
    """Average random normal vectors by x <- W^k x and measure the distance from consensus.

    Parameters
    ----------
    source : MixingMatrix | Schedule
        The matrix or schedule.
    rounds : int, default 100
        The number of rounds.
    width : int, default 16
        The number of entries of each vector.
    seed : int, default 0
        The seed of the vectors.

    Returns
    -------
    GossipRun
        The measured and the predicted distances.

    Examples
    --------
    >>> from topologies import build_schedule
    >>> run = gossip(build_schedule("one_peer_exponential", 4), rounds=2)
    >>> bool(run.distance[-1] < 1e-15)
    True
    """
    schedule = as_schedule(source)
    check_memory(16 * (schedule.n * width + rounds), f"{rounds} rounds of {width} entries a node")
    rate = consensus_rate(schedule)
    x = np.random.default_rng(seed).standard_normal((schedule.n, width))
    start = x.mean(axis=0)
    distance = np.empty(rounds + 1)
    distance[0] = _distance(x)
    for k in range(1, rounds + 1):
        x = schedule.matrix(k).to_sparse() @ x
        distance[k] = _distance(x)
    scale = distance[0] or 1.0
    predicted = max(0.0, 1 - rate.p) ** (np.arange(rounds + 1) // rate.tau / 2)
    drift = float(np.sqrt(((x.mean(axis=0) - start) ** 2).mean()) / scale)
    relative = distance / scale
    return GossipRun(relative, predicted, rate, _late_contraction(relative, rate.tau), drift)


def _distance(x: Array) -> float:
    return float(np.sqrt(((x - x.mean(axis=0)) ** 2).mean()))


def _late_contraction(distance: Array, tau: int) -> float:
    """Return the factor per round over the later half of the rounds above rounding error."""
    above = np.flatnonzero(distance > 1e-12)
    last = int(above[-1]) if len(above) else 0
    blocks = last // tau
    if not blocks:
        return 0.0
    middle = blocks // 2
    ratio = distance[blocks * tau] / distance[middle * tau]
    return float(ratio ** (1 / ((blocks - middle) * tau)))
