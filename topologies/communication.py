"""What gossip costs, and a dry run of it on random vectors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from topologies.analysis import ConsensusRate, consensus_rate, rounds_to
from topologies.catalogue import check_memory
from topologies.matrix import ACTIVE, MixingMatrix
from topologies.sequences import Schedule, as_schedule

Array = NDArray[np.float64]

SAMPLED_ROUNDS = 50
MESSAGE_BYTES = 4_000_000


def sampled_rounds(schedule: Schedule) -> list[MixingMatrix]:
    """Return the matrices of a period, or of the first rounds of a schedule without one."""
    count = schedule.period or schedule.tau * math.ceil(SAMPLED_ROUNDS / schedule.tau)
    return [schedule.matrix(k) for k in range(1, count + 1)]


def messages_received(matrix: MixingMatrix) -> NDArray[np.int64]:
    """Return int64 [n]: from how many others each node needs a message in a round with this W."""
    edges = matrix.edges[np.abs(matrix.weights) > ACTIVE]
    receivers = edges.ravel() if matrix.symmetric else edges[:, 0]
    return np.bincount(receivers, minlength=matrix.n)


@dataclass(frozen=True)
class Communication:
    """What a schedule sends.

    Attributes:
        messages: a round, of all nodes together, on average.
        most_messages: received by any node in any of the rounds looked at.
        bytes: a round, of all nodes together, on average.
        rounds: until the distance from consensus is ``accuracy`` of what it was; may be infinite.
        bytes_to_accuracy: in these rounds.
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
    """Return what gossip by a matrix or schedule sends, if each message has ``message_bytes``.

    Edges of weight zero send nothing. ``rate`` spares computing it again.
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
    """Gossip on random vectors: float64 arrays over the rounds 0 .. K.

    Attributes:
        distance: root mean square distance of the nodes from their mean, 1 in round 0.
        predicted: what the consensus rate promises for it, (1 - p)^(floor(k / tau) / 2).
        rate: that rate.
        contraction: of the distance per round, measured over the later half of the rounds above
            rounding.
        drift: how far the mean moved in all, relative to the distance in round 0.
    """

    distance: Array
    predicted: Array
    rate: ConsensusRate
    contraction: float
    drift: float


def gossip(
    source: MixingMatrix | Schedule, rounds: int = 100, *, width: int = 16, seed: int = 0
) -> GossipRun:
    """Average random normal vectors of ``width`` entries by x <- W^k x and measure how it goes."""
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
    """Return the factor a round in the later half, in whole blocks of tau, of what is no noise."""
    above = np.flatnonzero(distance > 1e-12)
    last = int(above[-1]) if len(above) else 0
    blocks = last // tau
    if not blocks:
        return 0.0
    middle = blocks // 2
    ratio = distance[blocks * tau] / distance[middle * tau]
    return float(ratio ** (1 / ((blocks - middle) * tau)))
